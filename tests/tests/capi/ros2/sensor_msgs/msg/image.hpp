// The fields of sensor_msgs/Image, and an image for the stand-in's subscriptions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sensor_msgs::msg {
struct Image {
    struct {
        struct {
            std::int32_t sec = 0;
            std::uint32_t nanosec = 0;
        } stamp;
        std::string frame_id;
    } header;
    std::uint32_t height = 0, width = 0;
    std::string encoding;
    std::uint8_t is_bigendian = 0;
    std::uint32_t step = 0;
    std::vector<std::uint8_t> data;

    /// Two rows of two pixels, with two bytes between the rows.
    static Image sample() {
        Image image;
        image.header.stamp.sec = 7, image.header.stamp.nanosec = 9;
        image.height = 2, image.width = 2, image.encoding = "bgr8", image.step = 8;
        image.data = {1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 11, 12};
        return image;
    }
};
} // namespace sensor_msgs::msg
