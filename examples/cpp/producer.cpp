// Publishes an image: written where its readers will find it, without a copy.
//
//     c++ -std=c++17 producer.cpp -o producer $(pkg-config --cflags --libs tensorlend)
#include <algorithm>
#include <iostream>
#include <tensorlend.hpp>

int main() {
    try {
        tensorlend::Client client; // $TENSORLEND_SOCKET, the user's daemon, or the system's
        auto image = client.create<std::uint8_t>({480, 640, 3});
        const auto pixels = image.span<std::uint8_t>();
        std::fill(pixels.begin(), pixels.end(), std::uint8_t{128});
        std::move(image).publish("camera/front");
        std::cout << "published camera/front\n";
    } catch (const tensorlend::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
