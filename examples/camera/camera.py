"""A camera: draws pictures of 480 x 640 x 3 bytes directly in shared memory and sends them without a copy, until Ctrl-C.

    python camera.py [FRAMES [VIEWERS]]

Kill it and start it again: the viewers continue. With VIEWERS, it waits for this number of viewers before the first picture.
"""

import contextlib
import itertools
import sys
import time

import tensorlend

frames, viewers = [*map(int, sys.argv[1:]), 0, 0][:2]
client = tensorlend.connect(label="camera")
with contextlib.suppress(KeyboardInterrupt), client.stream("camera/front", capacity=8, policy="drop-oldest") as stream:
    stream.wait_subscribers(viewers)
    for number in range(frames) if frames else itertools.count():
        frame = stream.create((480, 640, 3), "uint8")
        picture = frame.array  # cv2.VideoCapture(0).read(picture) fills it likewise
        picture[:] = number % 200  # fill every pixel: the memory may contain an older picture
        picture[:, number % 640] = 255  # a bar that moves
        stream.send(frame, timestamp=time.time_ns())
        time.sleep(1 / 100)
