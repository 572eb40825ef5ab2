// Sends camera frames on the stream "camera": opencv_camera [FRAMES] [DEVICE]. Without a device it draws them.
#include "mat.hpp"
#include <cstdlib>
#include <iostream>
#include <thread>
#ifdef HAVE_VIDEOIO
#include <opencv2/videoio.hpp>
#endif

int main(int count, char **arguments) {
    using namespace std::chrono_literals;
    try {
        const int frames = count > 1 ? std::atoi(arguments[1]) : 100;
        int height = 480, width = 640;
#ifdef HAVE_VIDEOIO
        cv::VideoCapture capture;
        if (count > 2 && !capture.open(std::atoi(arguments[2])))
            throw std::runtime_error("no such camera");
        if (capture.isOpened()) {
            height = int(capture.get(cv::CAP_PROP_FRAME_HEIGHT));
            width = int(capture.get(cv::CAP_PROP_FRAME_WIDTH));
        }
#endif
        const tensorlend::Client client(tensorlend::Options().label("camera"));
        auto camera = client.stream("camera", 8, TENSORLEND_POLICY_DROP_OLDEST); // a slow viewer loses frames
        camera.wait_subscribers(1, 60s);
        for (int number = 0; number < frames; number++) {
            example::Frame frame(client, height, width, 3);
#ifdef HAVE_VIDEOIO
            if (capture.isOpened())
                capture.read(frame.mat); // written where the viewers read it
            else
#endif
            {
                frame.mat.setTo(cv::Scalar(number % 256, 128, 255));
                std::this_thread::sleep_for(10ms); // the pace of a camera
            }
            if (!frame.is_in_place())
                throw std::runtime_error("the camera's frames have another size or type");
            frame.draft.set_timestamp(std::chrono::system_clock::now());
            camera.send(std::move(frame.draft));
        }
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
