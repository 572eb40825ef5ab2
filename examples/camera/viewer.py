"""A viewer that reads each picture in place with numpy. Prints the number of pictures and their median age."""

import statistics
import time

import numpy as np
import tensorlend

ages_us, lost = [], 0
for message in tensorlend.connect(label="viewer").subscribe("camera/front", start="oldest", wait=60):
    picture = np.asarray(message.tensor)  # no copy; the picture stays while the array lives
    bar = int(np.argmax(picture[0, :, 0]))
    assert picture.shape == (480, 640, 3) and bar == message.sequence % 640
    ages_us.append((time.time_ns() - message.timestamp) / 1000)
    lost += message.lost
print(f"viewer: {len(ages_us)} pictures, {lost} lost, median age {statistics.median(ages_us):.0f} us")
