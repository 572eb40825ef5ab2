// The classes of tensorlend.hpp.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <tensorlend.hpp>
#include <type_traits>

using namespace tensorlend;
using namespace std::chrono_literals;

#define IS(condition)                                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " << #condition << '\n';                \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

template <typename Call> tensorlend_status status_of(Call call) {
    try {
        call();
    } catch (const Error &error) {
        IS(std::strlen(error.what()) > 0);
        return error.status();
    }
    return TENSORLEND_OK;
}

template <typename T> constexpr bool owns_alone =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(owns_alone<Client> && owns_alone<Draft> && owns_alone<Lease> && owns_alone<Stream>);
static_assert(owns_alone<Subscription> && owns_alone<Options> && owns_alone<Leases> && owns_alone<Listing>);

static Draft counting(const Client &client, std::uint32_t first) {
    auto draft = client.create<std::uint32_t>({2, 3});
    std::iota(draft.data<std::uint32_t>(), draft.data<std::uint32_t>() + 6, first);
    return draft;
}

int main() {
    Options options;
    check(tensorlend_options_new(options.out()));
    check(tensorlend_options_socket(options.get(), "/nowhere"));
    IS(status_of([&] { Client nobody(options); }) == TENSORLEND_DISCONNECTED);

    Client client;
    auto draft = counting(client, 4);
    IS(draft.bytes() == 24);
    draft.metadata("metres");
    draft.timestamp(12);
    const tensorlend_version version = std::move(draft).publish("numbers");
    IS(!draft && client.exists("numbers"));
    Lease lease = client.lease("numbers");
    IS(lease.data<std::uint32_t>()[5] == 9 && lease.tensor().ndim == 2 && lease.tensor().timestamp_ns == 12);
    IS(tensorlend_version_equal(lease.version(), version));
    try {
        lease.data<float>();
        IS(false);
    } catch (const std::invalid_argument &error) {
        IS(std::strcmp(error.what(), "u32") == 0);
    }
    client.put("numbers", std::vector<float>{1.5f, 2.5f});
    IS(lease.data<std::uint32_t>()[0] == 4);
    lease = client.wait("numbers", version, 10s); // the old lease ends
    IS(lease.data<float>()[1] == 2.5f);
    IS(status_of([&] { client.wait("numbers", lease.version(), 1ms); }) == TENSORLEND_TIMEOUT);
    IS(status_of([&] { client.lease("missing"); }) == TENSORLEND_NOT_FOUND);

    auto frame = client.dataset();
    frame.add("left", counting(client, 1));
    frame.add("right", counting(client, 10));
    IS(status_of([&] { frame.add("right", counting(client, 20)); }) == TENSORLEND_ARGUMENT);
    std::move(frame).publish("frame");
    lease = client.lease("frame");
    IS(lease.data<std::uint32_t>("right")[0] == 10 && std::strcmp(lease.tensor("left").name, "left") == 0);
    try {
        lease.tensor("middle");
        IS(false);
    } catch (const std::out_of_range &) {
    }

    auto stream = client.stream("camera", 2);
    auto frames = client.subscribe("camera", TENSORLEND_START_OLDEST);
    stream.wait_subscribers(1);
    IS(stream.send(counting(client, 5)) == 0 && stream.send(counting(client, 6), 1s) == 1);
    IS(status_of([&] { stream.send(counting(client, 7), 1ms); }) == TENSORLEND_TIMEOUT);
    std::uint64_t number = 7;
    IS(frames.recv(10s, &number).data<std::uint32_t>()[0] == 5 && number == 0);
    stream = {};
    IS(frames.recv().data<std::uint32_t>()[0] == 6);
    IS(!frames.recv());

    Listing listing;
    check(tensorlend_list_names(client.get(), "*", listing.out()));
    IS(tensorlend_listing_count(listing.get()) == 2);
    check(tensorlend_list_names(client.get(), "f*", listing.out()));
    IS(tensorlend_listing_count(listing.get()) == 1);
    IS(client.remove("frame") && client.remove("numbers") && !client.remove("numbers"));
    std::cout << "all is well\n";
}
