"""A viewer: reads each picture in place with numpy, and continues with the camera's next process, until Ctrl-C."""

import statistics
import time

import numpy as np
import tensorlend

client = tensorlend.connect(label="viewer")
frames = client.subscribe("camera/front", wait=float("inf"))  # also before the first camera
pictures = 0
try:
    while True:
        ages_us = []
        for message in frames:  # until the camera's process ends
            picture = message.numpy()  # no copy; the picture stays while the array lives
            bar = int(np.argmax(picture[0, :, 0]))
            assert picture.shape == (480, 640, 3) and bar == message.sequence % 640
            pictures += 1
            ages_us.append((time.time_ns() - message.timestamp) / 1000)
        if ages_us:
            print(f"the camera has ended: {len(ages_us)} pictures, median age {statistics.median(ages_us):.0f} us", flush=True)
        time.sleep(0.1)  # the subscription continues with the next process
except KeyboardInterrupt:
    print(f"viewer: {pictures} pictures, {frames.lost} lost")
