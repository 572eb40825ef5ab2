// Waits for an image and reads it in place, in the memory that the producer wrote.
//
//     c++ -std=c++17 consumer.cpp -o consumer $(pkg-config --cflags --libs tensorlend)
#include <iostream>
#include <tensorlend.hpp>

int main() {
    using namespace std::chrono_literals;
    try {
        tensorlend::Client client;
        const tensorlend::Lease lease = client.wait_for("camera/front", 10s);
        const char *between = "";
        for (std::uint64_t size : lease.shape()) { // borrowed from the lease
            std::cout << between << size;
            between = " x ";
        }
        std::cout << ' ' << tensorlend_dtype_name(lease.tensor().dtype) << ", first " << +lease.span<std::uint8_t>()[0] << '\n';
    } catch (const tensorlend::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
} // the lease ends: from here on its memory may be reused
