"""Sends pictures from one actor of Ray to another in lent memory.

One actor renders pictures, and another one measures their brightness. Three lines differ from a program without tensorlend:
`install`, the decorator of the method that returns a tensor, and the option of the actor that receives it. Prints the mean brightness of all pictures. Needs torch and
ray.
"""

import ray
import torch

import tensorlend.ray

tensorlend.ray.install()


@ray.remote(num_cpus=0)
class Camera:
    """Renders pictures."""

    @ray.method(tensor_transport="tensorlend")
    def picture(self, number):
        return torch.full((1080, 1920, 3), number % 256, dtype=torch.uint8)


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Meter:
    """Measures pictures, which are its own: it may write to them."""

    def brightness(self, picture):
        picture[0] = 0  # the first row of each picture has a time stamp
        return float(picture.float().mean())


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    camera, meter = Camera.remote(), Meter.remote()
    found = ray.get([meter.brightness.remote(camera.picture.remote(number)) for number in range(20)])
    print(f"{len(found)} pictures, mean brightness {sum(found) / len(found):.3f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
