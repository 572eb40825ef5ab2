// Waits for an image and reads it in place, in the memory that the producer wrote.
//
//     c++ -std=c++17 consumer.cpp -o consumer $(pkg-config --cflags --libs tensorlend)
#include <iostream>
#include <tensorlend.hpp>

int main() {
    using namespace std::chrono_literals;
    try {
        tensorlend::Client client;
        const tensorlend::Lease lease = client.wait("camera/front", {}, 10s);
        const tensorlend_tensor &image = lease.tensor(); // borrowed from the lease
        for (std::uint32_t i = 0; i < image.ndim; i++) std::cout << (i == 0 ? "" : " x ") << image.shape[i];
        std::cout << ' ' << tensorlend_dtype_name(image.dtype) << ", first " << +*lease.data<std::uint8_t>() << '\n';
    } catch (const tensorlend::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
} // the lease ends: from here on its memory may be reused
