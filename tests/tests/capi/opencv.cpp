// The views of examples/opencv: every shape and type that they accept, and those that they refuse.
#include "../../../examples/opencv/mat.hpp"
#include <cstdlib>
#include <iostream>
#include <numeric>

#define IS(condition)                                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " << #condition << '\n';                \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

static bool is_refused(const tensorlend::Client &client) {
    const tensorlend::Lease lease = client.get("image");
    try {
        example::view(lease.tensor());
    } catch (const std::invalid_argument &) {
        return true;
    }
    return false;
}

/// Publishes elements 0, 1, 2, ... of this shape as "image".
template <typename T> void publish(const tensorlend::Client &client, const tensorlend::Shape &shape) {
    auto draft = client.create<T>(shape);
    const auto elements = draft.template span<T>();
    std::iota(elements.begin(), elements.end(), T(0));
    std::move(draft).publish("image");
}

static void test_views(const tensorlend::Client &client) {
    publish<std::uint8_t>(client, {2, 3});
    tensorlend::Lease lease = client.get("image");
    const cv::Mat grey = example::view(lease.tensor());
    IS(grey.data == lease.data<std::uint8_t>() && grey.type() == CV_8UC1 && grey.rows == 2 && grey.cols == 3);
    IS(grey.isContinuous() && grey.at<std::uint8_t>(1, 2) == 5);

    publish<std::uint8_t>(client, {2, 2, 3});
    lease = client.get("image");
    const cv::Mat colour = example::view(lease.tensor());
    IS(colour.data == lease.data<std::uint8_t>() && colour.type() == CV_8UC3 && colour.at<cv::Vec3b>(1, 0) == cv::Vec3b(6, 7, 8));

    publish<float>(client, {2, 2});
    lease = client.get("image");
    const cv::Mat depth = example::view(lease.tensor());
    IS(depth.ptr<float>() == lease.data<float>() && depth.type() == CV_32FC1 && depth.at<float>(1, 1) == 3);

    auto padded = client.create_strided<std::uint8_t>({2, 2, 3}, {8, 3, 1});
    std::iota(padded.data<std::uint8_t>(), padded.data<std::uint8_t>() + padded.bytes(), std::uint8_t(0));
    std::move(padded).publish("image");
    lease = client.get("image");
    const cv::Mat rows = example::view(lease.tensor());
    IS(rows.data == lease.tensor().data && !rows.isContinuous() && rows.step == 8 && rows.at<cv::Vec3b>(1, 1) == cv::Vec3b(11, 12, 13));
    IS(cv::sum(rows)[0] == 0 + 3 + 8 + 11); // without the gaps

    for (const tensorlend_dtype dtype : {TENSORLEND_I8, TENSORLEND_U16, TENSORLEND_I16, TENSORLEND_I32, TENSORLEND_F64}) {
        client.create(dtype, {1, 1, 2}).publish("image");
        lease = client.get("image");
        const cv::Mat pixels = example::view(lease.tensor());
        IS(pixels.channels() == 2 && pixels.elemSize1() == tensorlend_dtype_bytes(dtype));
    }
}

static void test_refusals(const tensorlend::Client &client) {
    publish<std::uint8_t>(client, {6});
    IS(is_refused(client));
    publish<std::uint8_t>(client, {1, 2, 3, 1});
    IS(is_refused(client));
    publish<std::uint64_t>(client, {2, 3}); // OpenCV has no such type
    IS(is_refused(client));
    publish<std::uint8_t>(client, {1, 1, CV_CN_MAX + 1});
    IS(is_refused(client));
    publish<std::uint8_t>(client, {1, 1, CV_CN_MAX});
    IS(!is_refused(client));
    client.create_strided<std::uint8_t>({2, 2}, {1, 2}).publish("image"); // columns
    IS(is_refused(client));
    client.create_strided<std::uint8_t>({2, 2, 3}, {12, 6, 2}).publish("image"); // gaps between channels
    IS(is_refused(client));
    client.create_strided<std::uint8_t>({2, 2}, {-2, 1}, 2).publish("image"); // upside down
    IS(is_refused(client));
}

static void test_frames(const tensorlend::Client &client) {
    example::Frame frame(client, 4, 5, 3);
    frame.mat.setTo(cv::Scalar(1, 2, 3));
    IS(frame.is_in_place() && frame.draft.data<std::uint8_t>()[3 * 4 * 5 - 1] == 3);
    cv::Mat(4, 5, CV_8UC3, cv::Scalar(4, 5, 6)).copyTo(frame.mat);
    IS(frame.is_in_place() && frame.draft.data<std::uint8_t>()[0] == 4);
    cv::Mat(2, 5, CV_8UC3, cv::Scalar(7, 8, 9)).copyTo(frame.mat); // another size: OpenCV allocates
    IS(!frame.is_in_place() && frame.draft.data<std::uint8_t>()[0] == 4);
}

int main() {
    const tensorlend::Client client;
    test_views(client);
    test_refusals(client);
    test_frames(client);
    client.remove("image");
    std::cout << "all is well\n";
}
