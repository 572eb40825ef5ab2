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
        for (std::uint32_t i = 0; i < 5; i++)
            stream.send(client.draft({i}));
        stream = {}; // closed
        for (const tensorlend::Message &frame : frames)
            std::cout << "frame " << frame.number << ": " << *frame.data<std::uint32_t>() << '\n';
        std::cout << "the stream has ended\n";
    } catch (const tensorlend::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
