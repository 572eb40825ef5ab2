// The conversions of examples/ros2, with a message that has the fields of sensor_msgs/Image.
#include "ros2/sensor_msgs/msg/image.hpp"
#include "../../../examples/ros2/image.hpp"
#include <cstdlib>
#include <iostream>
#include <vector>

#define IS(condition)                                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " << #condition << '\n';                \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

using sensor_msgs::msg::Image;

static bool is_refused(const tensorlend::Client &client, const Image &message) {
    try {
        example::to_draft(client, message);
    } catch (const std::invalid_argument &) {
        return true;
    }
    return false;
}

int main() {
    const tensorlend::Client client;
    Image image, back;
    image.header.stamp.sec = 7, image.header.stamp.nanosec = 9;
    image.height = 2, image.width = 2, image.encoding = "bgr8", image.step = 8; // two bytes between the rows
    image.data = {1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 11, 12};
    example::to_draft(client, image).publish("image");
    tensorlend::Lease lease = client.get("image");
    IS(lease.shape().size() == 3 && lease.metadata() == "bgr8" && lease.timestamp() == 7'000'000'009);
    example::to_message(lease, back);
    IS(back.height == 2 && back.width == 2 && back.step == 6 && back.encoding == "bgr8" && back.header.stamp.sec == 7);
    IS(back.header.stamp.nanosec == 9 && back.data == (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
    image.encoding = "32FC1", image.height = 1, image.width = 2;
    example::to_draft(client, image).publish("image");
    lease = client.get("image");
    IS(lease.shape().size() == 2 && lease.tensor().dtype == TENSORLEND_F32);

    // A message whose header announces more data than it has.
    image.height = 3;
    IS(is_refused(client, image));
    image.height = UINT32_MAX, image.step = UINT32_MAX;
    IS(is_refused(client, image));
    image.height = 1, image.step = 4;
    IS(is_refused(client, image));
    image.step = 8, image.is_bigendian = 1;
    IS(is_refused(client, image));
    image.encoding = "yuv422", image.is_bigendian = 0;
    IS(is_refused(client, image));
    image.encoding = "mono8", image.height = 0, image.data.clear();
    IS(!is_refused(client, image));
    client.remove("image");
    std::cout << "all is well\n";
}
