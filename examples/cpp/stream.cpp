// A stream: every message, in order, for every subscriber. Both ends in one program, for brevity.
//
//     c++ -std=c++17 stream.cpp -o stream $(pkg-config --cflags --libs tensorlend)
#include <iostream>
#include <tensorlend.hpp>

int main() {
    try {
        tensorlend::Client client;
        tensorlend::Stream stream = client.stream("camera", 8);
        tensorlend::Subscription frames = client.subscribe("camera", TENSORLEND_START_OLDEST);
        for (std::uint32_t i = 0; i < 5; i++) {
            auto frame = client.create<std::uint32_t>({1});
            *frame.data<std::uint32_t>() = i;
            stream.send(std::move(frame));
        }
        stream = {}; // closed
        std::uint64_t number = 0;
        while (tensorlend::Lease frame = frames.recv(tensorlend::forever, &number))
            std::cout << "frame " << number << ": " << *frame.data<std::uint32_t>() << '\n';
        std::cout << "the stream has ended\n";
    } catch (const tensorlend::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
