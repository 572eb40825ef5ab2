// A node that copies images between ROS 2 and tensorlend, in one direction:
//
//     ros2 run tensorlend_ros2 bridge --ros-args -p direction:=in -p stream:=camera -r image:=/camera/image_raw
//     ros2 run tensorlend_ros2 bridge --ros-args -p direction:=out -p stream:=camera -r image:=/camera/copy
//
// "in": from the topic to the stream, one copy into shared memory for all readers there. "out": from the stream to the
// topic.
#include "image.hpp"
#include <atomic>
#include <memory>
#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/image.hpp>
#include <thread>

using Image = sensor_msgs::msg::Image;
using namespace std::chrono_literals;

class Bridge : public rclcpp::Node {
    tensorlend::Client client_{tensorlend::Options().label("ros2 bridge")};
    std::string name_ = declare_parameter("stream", "camera");
    tensorlend::Stream stream_;
    rclcpp::Subscription<Image>::SharedPtr subscription_;
    rclcpp::Publisher<Image>::SharedPtr publisher_;
    std::atomic<bool> ends_{false};
    std::thread thread_;

    void take() {
        stream_ = client_.stream(name_, 8, TENSORLEND_POLICY_DROP_OLDEST);
        subscription_ = create_subscription<Image>("image", rclcpp::SensorDataQoS(), [this](const Image &message) {
            try {
                stream_.send(example::to_draft(client_, message));
            } catch (const std::exception &error) {
                RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000, "%s", error.what());
            }
        });
    }

    void give() {
        publisher_ = create_publisher<Image>("image", rclcpp::SensorDataQoS());
        thread_ = std::thread([this] {
            tensorlend::Subscription frames;
            while (!ends_) {
                try {
                    if (!frames)
                        frames = client_.subscribe(name_, TENSORLEND_START_NEWEST, 200ms);
                    if (const tensorlend::Message frame = frames.recv(200ms)) {
                        auto message = std::make_unique<Image>();
                        example::to_message(frame, *message);
                        publisher_->publish(std::move(message));
                    } else {
                        std::this_thread::sleep_for(200ms); // the stream has ended; it may be opened again
                    }
                } catch (const tensorlend::Error &error) {
                    if (error.status != TENSORLEND_TIMEOUT)
                        RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000, "%s", error.what());
                } catch (const std::exception &error) {
                    RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000, "%s", error.what());
                }
            }
        });
    }

public:
    Bridge() : Node("tensorlend_bridge") { declare_parameter("direction", "in") == "in" ? take() : give(); }
    ~Bridge() override {
        ends_ = true;
        if (thread_.joinable())
            thread_.join();
    }
};

int main(int count, char **arguments) {
    rclcpp::init(count, arguments);
    try {
        rclcpp::spin(std::make_shared<Bridge>());
    } catch (const std::exception &error) {
        RCLCPP_ERROR(rclcpp::get_logger("tensorlend_bridge"), "%s", error.what());
        return 1;
    }
    rclcpp::shutdown();
}
