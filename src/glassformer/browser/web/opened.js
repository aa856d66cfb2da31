// Says how to open the page where it was opened as a file: a browser then loads no modules.
if (location.protocol === "file:") {
  const says = document.createElement("p");
  says.textContent = navigator.language.startsWith("zh")
    ? "此页面须通过网页服务器打开。请在此文件夹中运行 python -m http.server，然后打开 http://localhost:8000"
    : "This page must come from a web server. Run python -m http.server in this folder, and open http://localhost:8000";
  document.getElementById("translator").append(says);
}
