// Browsers refuse web workers in pages opened from disk (file://). There, run the search worker in a hidden frame.
// Material's `offline` plugin would otherwise load the `iframe-worker` package from a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.receive = event => {
        if (event.source === this.frame.contentWindow)
          this.dispatchEvent(new MessageEvent("message", {data: event.data}));
      };
      addEventListener("message", this.receive);
      const scope = this.frame.contentWindow;
      scope.document.open();
      scope.document.write(`<body><script>${workerScope}</script><script src="${url}"></script></body>`);
      scope.document.close();
      this.ready = new Promise(resolve => scope.addEventListener("load", resolve));
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() {
      removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };
  // What a worker's global scope has and a frame's does not.
  const workerScope = `
    postMessage = message => parent.postMessage(message, "*");
    importScripts = (...urls) => urls.reduce((loaded, url) => loaded.then(() => new Promise(resolve => {
      const script = document.createElement("script");
      Object.assign(script, {src: url, onload: resolve});
      document.body.appendChild(script);
    })), Promise.resolve());`;
}
