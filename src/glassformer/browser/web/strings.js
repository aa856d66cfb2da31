// What the page says of its own, beside what every page that translates says, in each language of the interface.
import { LANGUAGES as SHARED } from "../../page/translator/strings.js";
import { percent } from "../../page/web/drawing.js";

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const threads = (count) => (count === 1 ? "1 thread" : `${count} threads`);

const OWN = {
  en: {
    placeholder: "Type or paste text here. It stays on this device.",
    loading: ({ done, total }) => `Loading the model: ${percent(done / total)} of ${megabytes(total)}`,
    starting: "Starting the model",
    computes: (facts, { device, threads: count }) => `${facts}; in this browser${device ? `, ${device === "webgpu" ? "WebGPU" : `WebAssembly, ${threads(count)}`}` : ""}`,
    failure: ({ code, message }) =>
      ({
        missing: `A file of this page could not be loaded: ${message}.`,
        broken: `The model could not be run in this browser: ${message}.`,
        too_long: "This sentence is too long: break it into several.",
      })[code] ?? message,
  },
  zh: {
    placeholder: "在此输入或粘贴文本，文本不会离开本设备。",
    loading: ({ done, total }) => `正在加载模型：${percent(done / total)}，共 ${megabytes(total)}`,
    starting: "正在启动模型",
    computes: (facts, { device, threads: count }) => `${facts}；在此浏览器中运行${device ? `（${device === "webgpu" ? "WebGPU" : `WebAssembly，${count} 个线程`}）` : ""}`,
    failure: ({ code, message }) =>
      ({
        missing: `无法加载此页面的文件：${message}。`,
        broken: `此浏览器无法运行模型：${message}。`,
        too_long: "这一句太长，请分成几句。",
      })[code] ?? message,
  },
};

export const LANGUAGES = Object.fromEntries(
  Object.entries(SHARED).map(([code, shared]) => [code, { ...shared, ...OWN[code], facts: (run) => OWN[code].computes(shared.facts(run), run) }]),
);
