"""Another user of the machine, who has no key: tries every door that it is told of, and prints what each one said."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys

NOBODY = 65534


def main() -> None:
    wanted = json.load(sys.stdin)
    "x".encode("idna")  # loads what a connection needs later, while it can still be read
    trusting = ssl._create_unverified_context()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    said: dict[str, dict[str, object]] = {"paths": {}, "sockets": {}, "files": {}}
    kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    host, port = wanted["address"]
    for path in wanted["paths"]:
        try:
            door = http.client.HTTPSConnection(host, port, timeout=30, context=trusting)
            door.request("POST", path, b"", kind)
            said["paths"][path] = door.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            said["paths"][path] = type(error).__name__
    for path in wanted["sockets"]:
        with socket.socket(socket.AF_UNIX) as local:
            try:
                local.connect(path)
                said["sockets"][path] = "connected"
            except OSError as error:
                said["sockets"][path] = type(error).__name__
    for path in wanted["files"]:
        try:
            with open(path, "rb") as file:
                said["files"][path] = len(file.read())
        except OSError as error:
            said["files"][path] = type(error).__name__
    print(json.dumps(said))


if __name__ == "__main__":
    main()
