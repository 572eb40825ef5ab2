// The classes of tensorlend.hpp.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <string>
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
        return error.status;
    }
    return TENSORLEND_OK;
}

template <typename T> constexpr bool owns_alone =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(owns_alone<Client> && owns_alone<Draft> && owns_alone<Lease> && owns_alone<Stream>);
static_assert(owns_alone<Stat> && owns_alone<Outstanding> && owns_alone<DLPack> && owns_alone<History>);
static_assert(owns_alone<Subscription> && owns_alone<Options> && owns_alone<Leases> && owns_alone<Listing>);

// A temporary's accessors would dangle, so they must not compile.
template <typename T, typename = void> constexpr bool has_data = false;
template <typename T> constexpr bool has_data<T, std::void_t<decltype(std::declval<T>().template data<float>())>> = true;
template <typename T, typename = void> constexpr bool has_tensor = false;
template <typename T> constexpr bool has_tensor<T, std::void_t<decltype(std::declval<T>().tensor())>> = true;
static_assert(has_data<Draft &> && has_data<const Lease &> && has_tensor<Lease &> && has_tensor<const Lease &>);
static_assert(!has_data<Draft> && !has_data<Lease> && !has_data<const Lease> && !has_tensor<Lease>);
// Later headers may add values: the enumerations' types have room for them.
static_assert(std::is_same_v<std::underlying_type_t<tensorlend_status>, int32_t> && sizeof(tensorlend_kind) == 4);

template <typename Failure, typename Call> std::string thrown(Call call) {
    try {
        call();
    } catch (const Failure &failure) {
        return failure.what();
    }
    return "nothing";
}

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
    IS(tensorlend_draft_bytes(draft.get()) == 24);
    IS(thrown<std::invalid_argument>([&] { draft.data<float>(); }) == "u32");
    check(tensorlend_draft_set_timestamp(draft.get(), 12));
    const tensorlend_version version = std::move(draft).publish("numbers");
    IS(!draft && made<bool>(tensorlend_exists, client.get(), "numbers"));
    IS(thrown<std::invalid_argument>([&] { draft.data<float>(); }) == "unknown");
    Lease lease = client.lease("numbers");
    IS(lease.data<std::uint32_t>()[5] == 9 && lease.tensor().ndim == 2 && lease.tensor().timestamp_ns == 12);
    IS(tensorlend_version_equal(tensorlend_lease_version(lease.get()), version));
    IS(thrown<std::invalid_argument>([&] { lease.data<float>(); }) == "u32");
    const tensorlend_version second = client.put("numbers", std::vector<float>{1.5f, 2.5f});
    IS(lease.data<std::uint32_t>()[0] == 4);
    lease = client.wait("numbers", version, 10s); // the old lease ends
    IS(lease.data<float>()[1] == 2.5f && tensorlend_version_equal(tensorlend_lease_version(lease.get()), second));
    IS(status_of([&] { client.wait("numbers", second, 1ms); }) == TENSORLEND_TIMEOUT);
    IS(status_of([&] { client.lease("missing"); }) == TENSORLEND_NOT_FOUND);
    const std::uint64_t shape[] = {2, 2};
    const std::int64_t strides[] = {1, 2};
    draft = made<Draft>(tensorlend_create_strided, client.get(), TENSORLEND_F32, 2, shape, strides, 0);
    std::move(draft).publish("transposed");
    lease = client.lease("transposed");
    IS(thrown<std::invalid_argument>([&] { lease.data<float>(); }).find("strided") == 0);
    check(tensorlend_delete(client.get(), "transposed", nullptr));

    auto frame = client.dataset();
    frame.add("left", counting(client, 1));
    frame.add("right", counting(client, 10));
    IS(status_of([&] { frame.add("right", counting(client, 20)); }) == TENSORLEND_ARGUMENT);
    std::move(frame).publish("frame");
    lease = client.lease("frame");
    IS(lease.data<std::uint32_t>("right")[0] == 10 && std::strcmp(lease.tensor("left").name, "left") == 0);
    IS(thrown<std::out_of_range>([&] { lease.tensor("middle"); }) == "middle");
    IS(thrown<std::out_of_range>([&] { lease.tensor(); }).find("name a member") != std::string::npos);

    auto left = made<DLPack>(tensorlend_lease_to_dlpack, lease.get(), "left");
    IS(left);
    left = {};
    check(tensorlend_lease_to_dlpack(lease.get(), "left", left.out())); // ends with the program, after the client

    auto stream = client.stream("camera", 2);
    auto frames = client.subscribe("camera", TENSORLEND_START_OLDEST);
    check(tensorlend_stream_wait_subscribers(stream.get(), 1, -1));
    IS(stream.send(counting(client, 5)) == 0 && stream.send(counting(client, 6), 1s) == 1);
    IS(status_of([&] { stream.send(counting(client, 7), 1ms); }) == TENSORLEND_TIMEOUT);
    std::uint64_t number = 7;
    Lease message = frames.recv(10s, &number);
    IS(message.data<std::uint32_t>()[0] == 5 && number == 0);
    IS(status_of([&] { Subscription().recv(); }) == TENSORLEND_ARGUMENT);
    stream = {};
    message = frames.recv();
    IS(message.data<std::uint32_t>()[0] == 6);
    IS(!frames.recv());

    auto listing = made<Listing>(tensorlend_list_names, client.get(), "*");
    IS(tensorlend_listing_count(listing.get()) == 2);
    check(tensorlend_list_names(client.get(), "f*", listing.out()));
    IS(tensorlend_listing_count(listing.get()) == 1);
    IS(made<bool>(tensorlend_delete, client.get(), "frame") && made<bool>(tensorlend_delete, client.get(), "numbers"));
    std::cout << "all is well\n";
}
