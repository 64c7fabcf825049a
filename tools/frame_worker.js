// A worker in a hidden frame: browsers start no Worker for a page opened from disk, and the handbook's search runs in one.
// The theme's own script awaits `importScripts` and reads its address from the frame's first script, where `IFrameWorker` is defined.
window.IFrameWorker = class extends EventTarget {
  constructor(address) {
    super();
    this.onmessage = null;
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.frame = frame.contentWindow;
    this.frame.postMessage = (data) => {
      const event = new MessageEvent("message", {data});
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    };
    const load = (source) => new Promise((done, failed) => {
      const script = this.frame.document.createElement("script");
      Object.assign(script, {src: source, onload: done, onerror: failed});
      this.frame.document.body.appendChild(script);
    });
    this.frame.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
    this.ready = load(address);
  }

  postMessage(data) {
    this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", {data})));
  }

  terminate() {
    this.frame.frameElement.remove();
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
