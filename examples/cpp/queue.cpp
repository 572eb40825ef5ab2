// A queue: each item goes to one consumer, and comes back unless the consumer confirms it. Both ends in one program, for
// brevity.
//
//     c++ -std=c++17 queue.cpp -o queue $(pkg-config --cflags --libs tensorlend)
#include <iostream>
#include <tensorlend.hpp>

int main() {
    try {
        tensorlend::Client client;
        tensorlend::Queue jobs = client.queue("jobs", 100);
        for (std::uint32_t i = 0; i < 3; i++)
            jobs.put(client.draft({i}));
        while (jobs.waiting() > 0) {
            tensorlend::QueueItem job = jobs.get();
            const std::uint32_t number = *job.data<std::uint32_t>();
            std::cout << "job " << job.number() << ": " << number << " squared is " << number * number << '\n';
            job.done(); // without it, the end of this scope gives the job back
        }
        std::cout << "the queue is empty\n";
    } catch (const tensorlend::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
