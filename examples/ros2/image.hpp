// Conversions between sensor_msgs/Image and tensors. Templates on the message: they need no ROS header.
#pragma once
#include <cstring>
#include <stdexcept>
#include <string>
#include <tensorlend.hpp>

namespace example {
/// Elements and channels of a pixel, by the name that ROS has for them (sensor_msgs/image_encodings.hpp).
struct Encoding {
    const char *name;
    tensorlend_dtype dtype;
    uint32_t channels;
};
inline constexpr Encoding encodings[] = {
    {"rgb8", TENSORLEND_U8, 3},   {"bgr8", TENSORLEND_U8, 3},   {"rgba8", TENSORLEND_U8, 4},  {"bgra8", TENSORLEND_U8, 4},
    {"mono8", TENSORLEND_U8, 1},  {"8UC1", TENSORLEND_U8, 1},   {"8UC2", TENSORLEND_U8, 2},   {"8UC3", TENSORLEND_U8, 3},
    {"8UC4", TENSORLEND_U8, 4},   {"mono16", TENSORLEND_U16, 1}, {"16UC1", TENSORLEND_U16, 1}, {"16SC1", TENSORLEND_I16, 1},
    {"32FC1", TENSORLEND_F32, 1}, {"32FC3", TENSORLEND_F32, 3}, {"64FC1", TENSORLEND_F64, 1},
};

inline const Encoding &encoding_of(const std::string &name) {
    for (const Encoding &encoding : encodings)
        if (name == encoding.name)
            return encoding;
    throw std::invalid_argument("encoding " + name);
}

/// A draft with a message's pixels: (height, width), or (height, width, channels). The encoding is its metadata, the
/// time stamp its timestamp. One copy, row by row, since a message may have gaps between its rows.
template <typename Image> tensorlend::Draft to_draft(const tensorlend::Client &client, const Image &message) {
    const Encoding &encoding = encoding_of(message.encoding);
    const uint64_t item = tensorlend_dtype_bytes(encoding.dtype);
    const uint64_t row = uint64_t(message.width) * encoding.channels * item;
    const uint64_t rows = message.height;
    // A publisher may be wrong about its own image.
    if (message.step < row || (rows > 0 && (rows - 1) * uint64_t(message.step) + row > message.data.size()))
        throw std::invalid_argument("the image has fewer bytes than it says");
    if (message.is_bigendian && item > 1)
        throw std::invalid_argument("the image's elements are big-endian");
    using tensorlend::Shape;
    const Shape shape = encoding.channels == 1 ? Shape(message.height, message.width)
                                               : Shape(message.height, message.width, encoding.channels);
    auto draft = client.create(encoding.dtype, shape);
    auto *to = static_cast<unsigned char *>(tensorlend_draft_data(draft.handle()));
    for (uint64_t at = 0; at < rows && row > 0; at++)
        std::memcpy(to + at * row, message.data.data() + at * uint64_t(message.step), row);
    draft.set_metadata(message.encoding);
    draft.set_timestamp(uint64_t(message.header.stamp.sec) * 1'000'000'000 + message.header.stamp.nanosec);
    return draft;
}

/// Fills a message with a leased image. The metadata must be an encoding that fits its element type and channels.
template <typename Image> void to_message(const tensorlend::Lease &lease, Image &message) {
    const tensorlend_tensor &image = lease.tensor();
    const Encoding &encoding = encoding_of(std::string(lease.metadata()));
    const uint64_t channels = image.ndim == 3 ? image.shape[2] : 1;
    if (image.ndim < 2 || image.ndim > 3 || image.dtype != encoding.dtype || channels != encoding.channels)
        throw std::invalid_argument("the tensor is not an image of its encoding");
    const uint64_t row = image.shape[1] * channels * tensorlend_dtype_bytes(image.dtype);
    if (image.shape[0] > UINT32_MAX || image.shape[1] > UINT32_MAX || row > UINT32_MAX)
        throw std::invalid_argument("the image is larger than a message can say");
    message.height = uint32_t(image.shape[0]);
    message.width = uint32_t(image.shape[1]);
    message.encoding = encoding.name;
    message.is_bigendian = false;
    message.step = uint32_t(row);
    message.header.stamp.sec = decltype(message.header.stamp.sec)(image.timestamp_ns / 1'000'000'000);
    message.header.stamp.nanosec = uint32_t(image.timestamp_ns % 1'000'000'000);
    message.data.resize(size_t(image.nbytes));
    tensorlend::check(tensorlend_lease_copy(lease.handle(), nullptr, message.data.data(), image.nbytes));
}
} // namespace example
