// A handler of memory pressure throws: the process ends, and nothing is caught.
#include <cstdio>
#include <stdexcept>
#include <tensorlend.hpp>

int main() {
    const tensorlend::Client client(tensorlend::Options().memory_limit(1024).on_memory_pressure(
        [](void *, uint64_t, uint32_t) -> bool { throw std::runtime_error("from a handler"); }, nullptr));
    std::puts("connected");
    std::fflush(stdout);
    try {
        client.create<float>({1024});
    } catch (...) {
        std::puts("caught");
    }
    std::puts("went on");
}
