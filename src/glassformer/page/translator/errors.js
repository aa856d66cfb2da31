// An answer that is no answer. `code` says which (see strings.js), `after` the seconds to wait before another try.
export class ApiError extends Error {
  constructor(code, message = code, { status = 0, after = null } = {}) {
    super(message);
    Object.assign(this, { code, status, after });
  }
}
