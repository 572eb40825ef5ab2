// A stand-in for the parts of rclcpp that examples/ros2/bridge.cpp uses. A parameter is the environment variable ROS_name. A
// node with a subscription gets a message for each line of standard input; one without spins until it has published.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

namespace rclcpp {
struct Logger {};
struct Clock {
    using SharedPtr = std::shared_ptr<Clock>;
};
struct SensorDataQoS {};

template <typename Message> struct Subscription {
    using SharedPtr = std::shared_ptr<Subscription>;
};

template <typename Message> class Publisher {
    std::shared_ptr<std::atomic<bool>> has_published_;

public:
    using SharedPtr = std::shared_ptr<Publisher>;
    explicit Publisher(std::shared_ptr<std::atomic<bool>> has_published) : has_published_(std::move(has_published)) {}
    void publish(std::unique_ptr<Message> message) {
        if (!has_published_->exchange(true))
            std::cout << "published " << message->height << " x " << message->width << ' ' << message->encoding << '\n';
    }
};

class Node {
    std::function<void()> feed_;
    std::shared_ptr<std::atomic<bool>> has_published_ = std::make_shared<std::atomic<bool>>(false);
    Clock::SharedPtr clock_ = std::make_shared<Clock>();

public:
    explicit Node(const std::string &) {}
    virtual ~Node() = default;
    std::string declare_parameter(const std::string &name, const std::string &otherwise) {
        const char *given = std::getenv(("ROS_" + name).c_str());
        return given ? given : otherwise;
    }
    template <typename Message, typename Callback>
    typename Subscription<Message>::SharedPtr create_subscription(const std::string &, SensorDataQoS, Callback callback) {
        feed_ = [callback] { callback(Message::sample()); };
        return std::make_shared<Subscription<Message>>();
    }
    template <typename Message> typename Publisher<Message>::SharedPtr create_publisher(const std::string &, SensorDataQoS) {
        return std::make_shared<Publisher<Message>>(has_published_);
    }
    Logger get_logger() const { return {}; }
    Clock::SharedPtr get_clock() { return clock_; }

    void spin() {
        if (feed_)
            for (std::string line; std::getline(std::cin, line);)
                feed_();
        else
            while (!*has_published_)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
};

inline void init(int, char **) {}
inline void shutdown() {}
inline Logger get_logger(const std::string &) { return {}; }
inline void spin(const std::shared_ptr<Node> &node) { node->spin(); }
} // namespace rclcpp

#define RCLCPP_ERROR(logger, ...) (static_cast<void>(logger), std::fprintf(stderr, __VA_ARGS__))
#define RCLCPP_WARN_THROTTLE(logger, clock, milliseconds, ...)                                     \
    (static_cast<void>(logger), static_cast<void>(clock), static_cast<void>(milliseconds), std::fprintf(stderr, __VA_ARGS__))
