"""Connects to a viewer as a browser does, without drawing: python benchmarks/worker_viewer.py ADDRESS.

Prints "connected" after the first message of the page; reads until standard input is closed, and then prints a line of
JSON with the number of messages and bytes. For machines without a browser; `viewer.py` uses it.
"""

import json
import sys
import threading
from urllib.parse import urlsplit

import msgspec
import viser
from viser._messages import ViewerCameraMessage
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

CAMERA = ViewerCameraMessage(
    wxyz=(1.0, 0.0, 0.0, 0.0),
    position=(-1.6, -1.6, 0.9),
    fov=1.3,
    near=0.01,
    far=100.0,
    image_height=720,
    image_width=1280,
    look_at=(0.0, 0.0, 0.0),
    up_direction=(0.0, 0.0, 1.0),
)


def main() -> None:
    parts = urlsplit(sys.argv[1])
    with connect(f"ws://{parts.netloc}/", subprotocols=[f"viser-v{viser.__version__}"], max_size=None) as socket:
        # The server counts a client once it has told where its camera is.
        socket.send(msgspec.msgpack.encode(CAMERA.as_serializable_dict()))
        threading.Thread(target=lambda: (sys.stdin.read(), socket.close()), daemon=True).start()
        messages = size = 0
        try:
            for message in socket:
                if messages == 0:
                    print("connected", flush=True)
                messages, size = messages + 1, size + len(message)
        except ConnectionClosed:
            pass
    print(json.dumps({"messages": messages, "bytes": size}), flush=True)


if __name__ == "__main__":
    main()
