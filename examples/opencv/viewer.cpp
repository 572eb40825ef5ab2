// Reads the frames of the stream "camera" in place, and prints the mean colour of the last one.
#include "mat.hpp"
#include <iostream>

int main() {
    using namespace std::chrono_literals;
    try {
        const tensorlend::Client client(tensorlend::Options().label("viewer"));
        auto frames = client.subscribe("camera", TENSORLEND_START_OLDEST, 60s);
        cv::Scalar mean;
        int count = 0;
        for (const tensorlend::Message &frame : frames.within(60s)) {
            mean = cv::mean(example::view(frame.tensor())); // the camera's own pages
            count++;
        } // the lease on a frame ends when the next one is taken
        std::cout << count << " frames, " << frames.lost() << " lost, last mean " << mean[0] << ' ' << mean[1] << ' ' << mean[2] << '\n';
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
