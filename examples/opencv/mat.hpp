// Views of tensors as cv::Mat, without a copy. A view is valid as long as its draft or lease.
#pragma once
#include <opencv2/core.hpp>
#include <stdexcept>
#include <tensorlend.hpp>

namespace example {
/// OpenCV's type for elements of this type, with `channels` of them in a pixel.
inline int mat_type(tensorlend_dtype dtype, uint64_t channels) {
    if (channels < 1 || channels > CV_CN_MAX)
        throw std::invalid_argument("a number of channels that OpenCV does not have");
    switch (dtype) {
    case TENSORLEND_U8: return CV_MAKETYPE(CV_8U, int(channels));
    case TENSORLEND_I8: return CV_MAKETYPE(CV_8S, int(channels));
    case TENSORLEND_U16: return CV_MAKETYPE(CV_16U, int(channels));
    case TENSORLEND_I16: return CV_MAKETYPE(CV_16S, int(channels));
    case TENSORLEND_I32: return CV_MAKETYPE(CV_32S, int(channels));
    case TENSORLEND_F32: return CV_MAKETYPE(CV_32F, int(channels));
    case TENSORLEND_F64: return CV_MAKETYPE(CV_64F, int(channels));
    default: throw std::invalid_argument(tensorlend_dtype_name(dtype));
    }
}

/// A leased image, (height, width) or (height, width, channels), whose rows may have gaps between them. It is read-only:
/// a write ends the process with SIGSEGV. clone() it to change it, or to keep it longer than the lease.
inline const cv::Mat view(const tensorlend_tensor &image) {
    if (image.data == nullptr || image.ndim < 2 || image.ndim > 3)
        throw std::invalid_argument("an image in host memory has two dimensions, or three");
    const uint64_t channels = image.ndim == 3 ? image.shape[2] : 1;
    const bool is_dense = (image.ndim == 2 || image.strides[2] == 1) && uint64_t(image.strides[1]) == channels;
    if (!is_dense || image.strides[0] < 0 || image.shape[0] > INT32_MAX || image.shape[1] > INT32_MAX)
        throw std::invalid_argument("the pixels of a row are not contiguous, or there are too many");
    const size_t step = size_t(image.strides[0]) * tensorlend_dtype_bytes(image.dtype);
    return cv::Mat(int(image.shape[0]), int(image.shape[1]), mat_type(image.dtype, channels), const_cast<void *>(image.data), step);
}

/// A draft for an image, and its view to write into.
struct Frame {
    tensorlend::Draft draft;
    cv::Mat mat;

    Frame(const tensorlend::Client &client, int height, int width, int channels)
        : draft(client.create<uint8_t>({height, width, channels})), mat(height, width, CV_8UC(channels), draft.data<uint8_t>()) {}

    /// Whether the Mat still is the draft's memory: many of OpenCV's functions allocate another one where size or type
    /// differ from what they write.
    bool is_in_place() { return mat.data == draft.data<uint8_t>(); }
};
} // namespace example
