"""A process that decodes, after a file has taken it over: it says what its tasks tell it to."""

import json
import os
import struct
import time


def work(connection, pixels, decode_s):
    """Answer each message with the parts that the task has for it, in hexadecimal; "stop" sends half a message."""
    connection.send_bytes(b"{}")
    while True:
        for number, parts in enumerate(json.loads(connection.recv().content)):
            if number:
                connection.recv()
            for part in parts:
                if part == "stop":
                    os.write(connection.fileno(), struct.pack("!i", 10) + b"{")
                    time.sleep(60)
                connection.send_bytes(bytes.fromhex(part))


def deaf(connection, pixels, decode_s):
    """Read nothing."""
    connection.send_bytes(b"{}")
    time.sleep(60)
