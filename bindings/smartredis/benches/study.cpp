// Puts and unpacks tensors, and reads aggregation lists, by this library and by Redis through hiredis, in one run.
//
// usage: smartredis-study REDIS_PORT [SECONDS [CLIENTS]]
//
// SSDB and the daemon are those of the library. Redis gets the bytes by SET and GET, which does less than SmartRedis: no
// tensor module, no copies in the client. Each measurement forks its clients, waits until all are connected, and counts
// what all complete in SECONDS (0.5). The systems take turns, and the table shows the median of three turns. "memcpy"
// copies the same bytes between two buffers of the client. It is the floor of a library that copies once.
#include "client.h"
#include <array>
#include <cstring>
#include <hiredis/hiredis.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {
using Clock = std::chrono::steady_clock;
constexpr int DATASETS = 32, TENSORS = 4, TURNS = 3;
constexpr size_t LIST_BYTES = 16 * 1024, FLOOR_BYTES = 1 << 20;

int port = 6379;
double seconds = 0.5;

[[noreturn]] void fail(const std::string& what) {
    std::cerr << what << std::endl;
    std::_Exit(1);
}

/// The work of one client: prepares itself, then repeats `once`.
struct Work {
    virtual ~Work() = default;
    virtual void once() = 0;
};

struct Lent : Work {
    SmartRedis::Client client{"study"};
};

struct LentPut : Lent {
    std::string name;
    std::vector<float> data;
    LentPut(int number, size_t bytes) : name("study " + std::to_string(number)), data(bytes / 4, 1) {}
    void once() override { client.put_tensor(name, data.data(), {data.size()}, SRTensorTypeFloat, SRMemLayoutContiguous); }
};

struct LentUnpack : LentPut {
    LentUnpack(int number, size_t bytes) : LentPut(number, bytes) { LentPut::once(); }
    void once() override { client.unpack_tensor(name, data.data(), {data.size()}, SRTensorTypeFloat, SRMemLayoutContiguous); }
};

struct LentList : Lent {
    LentList(int number, size_t) {
        if (number > 0)
            return;
        const std::vector<float> data(LIST_BYTES / 4, 1);
        client.delete_list("study");
        for (int at = 0; at < DATASETS; at++) {
            SmartRedis::DataSet dataset("study " + std::to_string(at));
            for (int tensor = 0; tensor < TENSORS; tensor++)
                dataset.add_tensor(std::to_string(tensor), data.data(), {data.size()}, SRTensorTypeFloat, SRMemLayoutContiguous);
            client.put_dataset(dataset);
            client.append_to_list("study", dataset);
        }
    }
    void once() override {
        if (client.get_datasets_from_list("study").size() != size_t(DATASETS))
            fail("the list is incomplete");
    }
};

struct Redis : Work {
    redisContext* context = redisConnect("127.0.0.1", port);
    Redis() {
        if (context == nullptr || context->err != 0)
            fail("no Redis at this port");
    }
    ~Redis() override { redisFree(context); }
    /// A reply to a command that was sent: its bytes are copied to `to`, as SmartRedis copies them.
    void reply(std::vector<char>& to) {
        redisReply* reply = nullptr;
        if (redisGetReply(context, reinterpret_cast<void**>(&reply)) != REDIS_OK || reply->type == REDIS_REPLY_ERROR)
            fail("Redis failed");
        if (reply->type == REDIS_REPLY_STRING)
            to.assign(reply->str, reply->str + reply->len);
        freeReplyObject(reply);
    }
};

struct RedisPut : Redis {
    std::string name;
    std::vector<char> data;
    RedisPut(int number, size_t bytes) : name("study" + std::to_string(number)), data(bytes, 1) {}
    void once() override {
        std::vector<char> none;
        redisAppendCommand(context, "SET %s %b", name.c_str(), data.data(), data.size());
        reply(none);
    }
};

struct RedisUnpack : RedisPut {
    RedisUnpack(int number, size_t bytes) : RedisPut(number, bytes) { RedisPut::once(); }
    void once() override {
        redisAppendCommand(context, "GET %s", name.c_str());
        reply(data);
    }
};

struct RedisList : Redis {
    std::vector<char> data = std::vector<char>(LIST_BYTES, 1);
    RedisList(int number, size_t) {
        if (number > 0)
            return;
        redisAppendCommand(context, "DEL list");
        reply(data);
        data.assign(LIST_BYTES, 1);
        for (int at = 0; at < DATASETS; at++) {
            redisAppendCommand(context, "HSET d%d tensors 4", at);
            redisAppendCommand(context, "RPUSH list d%d", at);
            for (int tensor = 0; tensor < TENSORS; tensor++)
                redisAppendCommand(context, "SET d%d.%d %b", at, tensor, data.data(), data.size());
            std::vector<char> none;
            for (int count = 0; count < TENSORS + 2; count++)
                reply(none);
        }
    }
    void once() override {
        redisAppendCommand(context, "LRANGE list 0 -1");
        reply(data);
        for (int at = 0; at < DATASETS; at++)
            redisAppendCommand(context, "HGETALL d%d", at);
        for (int at = 0; at < DATASETS; at++)
            reply(data);
        for (int at = 0; at < DATASETS * TENSORS; at++)
            redisAppendCommand(context, "GET d%d.%d", at / TENSORS, at % TENSORS);
        for (int at = 0; at < DATASETS * TENSORS; at++)
            reply(data);
    }
};

/// The floor: one copy into memory that is in the tables of the process, as a lent slot is.
struct Memcpy : Work {
    std::vector<char> from, to;
    Memcpy(int, size_t bytes) : from(bytes, 1), to(bytes, 2) {}
    void once() override {
        std::memcpy(to.data(), from.data(), to.size());
        __asm__ volatile("" : : "r"(to.data()) : "memory"); // The compiler must not leave out a copy that nobody reads.
    }
};

/// Calls per second of all clients together.
template <typename Kind> double rate(int clients, size_t bytes) {
    int ready[2], start[2], results[2];
    if (pipe(ready) != 0 || pipe(start) != 0 || pipe(results) != 0)
        fail("no pipes");
    for (int number = 0; number < clients; number++) {
        if (fork() != 0)
            continue;
        try {
            Kind work(number, bytes);
            if (number == 0)
                work.once();
            char byte = 0;
            close(start[1]);
            const bool written = write(ready[1], &byte, 1) == 1;
            close(ready[1]);
            if (!written || read(start[0], &byte, 1) != 0)
                fail("the parent is gone");
            const auto from = Clock::now();
            uint64_t calls = 0;
            std::chrono::duration<double> took{};
            for (; took.count() < seconds; took = Clock::now() - from, calls++)
                work.once();
            const double own = double(calls) / took.count();
            if (write(results[1], &own, sizeof own) != sizeof own)
                fail("the parent is gone");
        } catch (const std::exception& error) {
            fail(error.what());
        }
        std::_Exit(0);
    }
    close(results[1]);
    close(start[0]);
    close(ready[1]); // If a client fails, this pipe ends.
    char byte = 0;
    for (int number = 0; number < clients; number++)
        if (read(ready[0], &byte, 1) != 1)
            fail("a client ended");
    close(start[1]); // All clients read the end of this pipe at once.
    double sum = 0, own = 0;
    while (read(results[0], &own, sizeof own) == sizeof own)
        sum += own;
    while (wait(nullptr) > 0) {
    }
    for (const int end : {ready[0], results[0]})
        close(end);
    return sum;
}

template <typename... Kinds> std::array<double, sizeof...(Kinds)> medians(int clients, size_t bytes) {
    std::array<std::array<double, TURNS>, sizeof...(Kinds)> turns{};
    for (int turn = 0; turn < TURNS; turn++) {
        size_t at = 0;
        ((turns[at++][size_t(turn)] = rate<Kinds>(clients, bytes)), ...);
    }
    std::array<double, sizeof...(Kinds)> middle{};
    for (size_t at = 0; at < turns.size(); at++) {
        std::sort(turns[at].begin(), turns[at].end());
        middle[at] = turns[at][TURNS / 2];
    }
    return middle;
}

void print(const char* what, int clients, size_t bytes, double lent, double redis) {
    std::printf("| %s | %d | %zu KiB | %.0f | %.0f | %.1f |", what, clients, bytes / 1024, lent, redis, lent / redis);
}

template <typename One, typename Other> void row(const char* what, int clients, size_t bytes) {
    const auto [lent, redis, memcpy] = medians<One, Other, Memcpy>(clients, bytes);
    print(what, clients, bytes, lent, redis);
    std::printf(" %.0f | ", memcpy);
    // Below 1 MiB the cost of a call dominates, and the copy stays in a cache.
    if (bytes >= FLOOR_BYTES)
        std::printf("%.2f", lent / memcpy);
    std::puts(" |");
    std::fflush(stdout);
}

void lists(int clients) {
    const auto [lent, redis] = medians<LentList, RedisList>(clients, LIST_BYTES);
    print("list of 32 datasets of 4 tensors", clients, LIST_BYTES, lent, redis);
    std::puts(" | |");
    std::fflush(stdout);
}
} // namespace

int main(int argc, char** argv) {
    if (argc < 2)
        fail("usage: smartredis-study REDIS_PORT [SECONDS [CLIENTS]]");
    port = std::atoi(argv[1]);
    if (argc > 2)
        seconds = std::atof(argv[2]);
    std::vector<int> numbers = {1, 8, 28};
    if (argc > 3)
        numbers = {std::atoi(argv[3])};
    std::puts("| work | clients | tensor | tensorlend, calls/s | Redis, calls/s | ratio to Redis | memcpy, calls/s | ratio to memcpy |");
    std::puts("|---|---|---|---|---|---|---|---|");
    std::fflush(stdout); // Otherwise forked clients print this again.
    for (const int clients : numbers) {
        for (const size_t kib : {1, 16, 256, 1024, 4096}) {
            row<LentPut, RedisPut>("put", clients, kib * 1024);
            row<LentUnpack, RedisUnpack>("unpack", clients, kib * 1024);
        }
        lists(clients);
    }
}
