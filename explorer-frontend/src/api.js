// Questions to the server. Arrays come packed: see src/imel/explorer/server.py.

export class ServerError extends Error {}

async function checked(response) {
  if (response.ok) return response;
  let reason = `${response.status} ${response.statusText}`;
  try {
    reason = (await response.json()).error ?? reason;
  } catch {
    // an answer without a reason: its status has to do
  }
  throw new ServerError(reason);
}

const early = new Map();

async function request(path, options) {
  let response;
  try {
    const begun = early.get(path);
    early.delete(path);
    response = await (begun ?? fetch(path, options));
  } catch {
    throw new ServerError("The explorer does not answer: is `imel explore` still running?");
  }
  return checked(response);
}

export const address = (path, query = {}) => `/api/${path}?${new URLSearchParams(query)}`;

// Begin a question that will be asked soon, while the page is busy with something else
export function begin(path, query) {
  const answer = fetch(address(path, query));
  answer.catch(() => {}); // said by whoever asks for it
  early.set(address(path, query), answer);
}

export const ask = async (path, query) => (await request(address(path, query))).json();

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(body) };
  return (await request(`/api/${path}`, options)).json();
}

export async function arrays(path, query) {
  const buffer = await (await request(address(path, query))).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  for (const [name, shape, bytes] of header.arrays) {
    const count = shape.reduce((product, size) => product * size, 1);
    header[name] = new (bytes === 8 ? Float64Array : Float32Array)(buffer, offset, count);
    offset += bytes * count;
  }
  return header;
}
