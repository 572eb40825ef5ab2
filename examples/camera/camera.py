"""A camera: draws pictures of 480 x 640 x 3 bytes directly in shared memory and sends them without a copy.

    python camera.py [FRAMES]
"""

import sys
import time

import tensorlend

frames = int(sys.argv[1]) if len(sys.argv) > 1 else 100
client = tensorlend.connect(label="camera")
with client.stream("camera/front", capacity=8, policy="drop-oldest") as stream:
    stream.wait_subscribers(2, timeout=60)
    for number in range(frames):
        frame = stream.create((480, 640, 3), "uint8")
        picture = frame.array
        picture[:] = number % 200  # fill every pixel: the memory may contain an older picture
        picture[:, number % 640] = 255  # a bar that moves
        frame.set_timestamp(time.time_ns())
        stream.send(frame)
        time.sleep(1 / 100)
