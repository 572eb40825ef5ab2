// The classes of tensorlend.hpp.
#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <tensorlend.hpp>
#include <thread>
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
static_assert(owns_alone<Caller> && owns_alone<Server> && owns_alone<Request> && owns_alone<Model> && owns_alone<ModelRequest>);
static_assert(owns_alone<Devices> && owns_alone<Message>);

// Any duration is a timeout: a past one does not wait, and the longest do not overflow.
static_assert(Timeout(2s).count() == 2'000'000'000 && Timeout(-1s).count() == 0 && Timeout().count() == 0);
static_assert(Timeout(std::chrono::hours::max()).count() == -1 && forever.count() == -1);
static_assert(Timeout(std::chrono::duration<double>(0.5)).count() == 500'000'000);
static_assert(Timeout(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())).count() == 0);
static_assert(dtype_of<long> == TENSORLEND_I64 && dtype_of<long long> == TENSORLEND_I64 && dtype_of<char> == 0);
static_assert(dtype_of<std::complex<float>> == TENSORLEND_C64 && dtype_of<bool> == TENSORLEND_BOOL && dtype_of<std::string> == 0);
#ifdef __cpp_lib_span
static_assert(std::is_same_v<Span<int>, std::span<int>>);
#endif

// A temporary's accessors would dangle, so they must not compile.
template <typename T, typename = void> constexpr bool has_data = false;
template <typename T> constexpr bool has_data<T, std::void_t<decltype(std::declval<T>().template data<float>())>> = true;
template <typename T, typename = void> constexpr bool has_tensor = false;
template <typename T> constexpr bool has_tensor<T, std::void_t<decltype(std::declval<T>().tensor())>> = true;
static_assert(has_data<Draft &> && has_data<const Lease &> && has_tensor<Lease &> && has_tensor<const Lease &>);
static_assert(!has_data<Draft> && !has_data<Lease> && !has_data<const Lease> && !has_tensor<Lease>);
static_assert(has_data<Message &> && !has_data<Message> && has_data<Request &> && !has_data<Request>);
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

// A type like std::mdspan: columns of a matrix with gaps between them.
struct Columns {
    using element_type = const float;
    using index_type = int;
    struct extents_type {};
    struct accessor_type {
        const float &access(const float *from, std::size_t at) const { return from[at]; }
    };
    struct mapping_type {
        std::size_t operator()(int row, int column) const { return std::size_t(row + 4 * column); }
    };
    const float *first;
    static constexpr std::size_t rank() { return 2; }
    std::size_t extent(std::size_t at) const { return at == 0 ? 3 : 2; }
    const float *data_handle() const { return first; }
    mapping_type mapping() const { return {}; }
    accessor_type accessor() const { return {}; }
};

static void test_elements(const Client &client) {
    std::vector<float> values(24);
    std::iota(values.begin(), values.end(), 0.f);
    client.put("cube", values, {2, 3, 4});
    Lease lease = client.get(std::string_view("cube, and more").substr(0, 4));
    const auto shape = lease.shape();
    IS(shape.size() == 3 && shape[0] == 2 && shape[2] == 4);
    const auto elements = lease.span<float>();
    IS(elements.size() == 24 && std::accumulate(elements.begin(), elements.end(), 0.f) == 276);
    IS(lease.copy<float>() == values && lease.kind() == TENSORLEND_KIND_TENSOR && lease.validate());
    IS(thrown<std::invalid_argument>([&] { client.put("cube", values, {2, 3, 5}); }) == "24 elements were given, and the shape has 30: give one for each");
    IS(thrown<std::invalid_argument>([&] { client.create<float>({-1, 3}); }) == "size -1 of the shape is below 0: give 0 or more");
    IS(thrown<std::invalid_argument>([&] { client.exists(std::string_view("a\0b", 3)); }) == "the text has a zero byte at index 1: remove it");
    IS(status_of([&] { client.exists(nullptr); }) == TENSORLEND_ARGUMENT);
    const int rows = 2, columns = 3; // as the sizes of other libraries' images
    IS(client.create<std::uint8_t>({rows, columns, 3}).bytes() == 18);
    IS(client.create<std::uint8_t>(std::vector<std::int64_t>{5, 5}).bytes() == 25);
    IS(client.create<double>({}).bytes() == 8 && client.create<double>({0, 7}).bytes() == 0);
    IS(thrown<std::invalid_argument>([&] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}; })== "the shape has more than 16 dimensions: merge some of them");
    IS(Shape(std::numeric_limits<std::uint64_t>::max(), 3).elements() == std::numeric_limits<std::uint64_t>::max());

    const int plain[] = {1, 2, 3};
    client.put("row", plain);
    client.put("row", std::array<double, 2>{1, 2});
    client.put("row", {1.5, 2.5, 3.5});
    client.put("row", Span<const float>(values.data(), 6), {2, 3}, Lifetime{0ns, true});
    const auto entry_of_row = [&] {
        const Listing row = client.info("row");
        return std::make_pair(row[0].ephemeral, row[0].ttl_ns);
    };
    IS(entry_of_row().first);
    client.put("row", values);
    IS(!entry_of_row().first);
    client.put("row", values, Lifetime{1min, true});
    IS(entry_of_row().first && entry_of_row().second > 0);
    client.put("row", {1.5, 2.5}, Lifetime{});
    IS(!entry_of_row().first && entry_of_row().second == 0);
    client.put("row", std::array<int, 1>{7}, {}); // braces are a shape
    Lease scalar = client.get("row");
    IS(scalar.shape().size() == 0 && *scalar.data<int>() == 7);
    double three[3];
    client.put("row", {1.5, 2.5, 3.5});
    client.get_into("row", three);
    IS(three[2] == 3.5);
    IS(status_of([&] { client.get_into("row", values); }) == TENSORLEND_ARGUMENT);
    // A view of any layout becomes row-major.
    client.put("row", Columns{values.data()});
    IS(client.get("row").copy<float>() == (std::vector<float>{0, 4, 1, 5, 2, 6}));
    IS(thrown<std::invalid_argument>([&] { client.create_strided<float>({2, 2}, {1}); }) ==
       "1 strides were given for 2 dimensions: give one for each");
    IS(thrown<std::invalid_argument>([&] { client.draft(values).publish("row", Lifetime{-1ns, false}); }) ==
       "the time to live is -1 ns: give 0, which sets no end, or more");
    auto flipped = client.create_strided<float>({2, 2}, {-2, 1}, 8);
    std::iota(flipped.data<float>(), flipped.data<float>() + 4, 0.f);
    flipped.set_metadata("upside down").set_timestamp(std::chrono::system_clock::time_point(5s));
    std::move(flipped).publish("row");
    lease = client.get("row");
    IS(lease.copy<float>() == (std::vector<float>{2, 3, 0, 1}) && lease.metadata() == "upside down");
    IS(lease.timestamp() == 5'000'000'000);
    const DLPack tensor = lease.dlpack();
    client.put("row", tensor);
    IS(client.get("row").copy<float>() == (std::vector<float>{2, 3, 0, 1}));
#ifdef __cpp_lib_mdspan
    IS(thrown<std::invalid_argument>([&] { lease.mdspan<float, 2>(); }) == "the tensor has a negative stride: use copy");
    lease = client.get("row");
    IS((lease.mdspan<float, 2>()[0, 1] == 3));
    IS(thrown<std::invalid_argument>([&] { lease.mdspan<float, 3>(); }) ==
       "the tensor has 2 dimensions, not 3: give its number of dimensions");
    client.put("row", std::mdspan(values.data(), 2, 3));
    client.put("row", std::mdspan<float, std::extents<int, 2, 2>, std::layout_left>(values.data()));
    IS(client.get("row").copy<float>() == (std::vector<float>{0, 2, 1, 3}));
#endif
    client.put("bools", std::array<bool, 2>{true, false});
    IS(client.get("bools").copy<unsigned char>() == (std::vector<unsigned char>{1, 0}));
    client.rename("row", "line");
    client.copy("line", "row");
    IS(client.remove("row") && client.remove("line") && client.remove("cube") && client.remove("bools") && !client.remove("row"));
}

static void test_loops(const Client &client) {
    std::string names;
    client.put("one", {1});
    client.put("two", {2});
    for (const tensorlend_entry &entry : client.list("*"))
        names += entry.name;
    const Listing two = client.info("two");
    IS(names == "onetwo" && two[0].nbytes == 4 && client.streams().size() == 0);
    IS(thrown<std::out_of_range>([&] { two[1]; }) == "index 1 is out of range: the size is 1");
    const Devices devices = client.devices();
    IS(thrown<std::out_of_range>([&] { devices[devices.size()]; }).find("index ") == 0);
    const char *const both[] = {"one", "two"};
    IS(client.append_names("numbers", both) == 0 && client.append("numbers", client.draft({3})) == 2);
    IS(client.append_names("texts", std::vector<std::string>{"one", "two", "one"}) == 0);
    IS(client.append_names("texts", std::array<std::string_view, 1>{std::string_view("two and more").substr(0, 3)}) == 3);
    IS(client.append_names("texts", std::set<std::string>{"one"}) == 4 && client.append_names("texts", {"two", "one"}) == 5);
    IS(status_of([&] { client.append_names("texts", {"one", "missing"}); }) == TENSORLEND_NOT_FOUND);
    IS(thrown<std::invalid_argument>([&] { client.append_names("texts", {std::string_view("o\0e", 3)}); }).find("zero") != std::string::npos);
    IS(client.length("texts") == 7 && client.clear("texts"));
    const Leases many = client.get_many(both);
    IS(many.size() == 2 && many[1].version() == client.get("two").version());
    IS(client.get_many(std::vector<std::string>{"two", "one", "two"}).size() == 3 && client.get_many({"one", "two"}).size() == 2);
    IS(thrown<std::out_of_range>([&] { many[2]; }) == "index 2 is out of range: the size is 2");
    IS(client.get_many(std::set<std::string>{}).size() == 0);
    IS(status_of([&] { client.get_many({"one", "missing"}); }) == TENSORLEND_NOT_FOUND);
    IS(thrown<std::invalid_argument>([&] { client.get_many({std::string_view("o\0e", 3)}); }).find("zero") != std::string::npos);
    IS(client.length("numbers") == 3 && client.wait_length("numbers", TENSORLEND_LENGTH_AT_LEAST, 3, 1min) == 3);
    int sum = 0;
    for (const Lease &item : client.get_all("numbers"))
        sum += *item.data<int>();
    for (Lease item : client.get_range("numbers", 1))
        sum += *item.data<int>();
    const Listing lists = client.lists();
    IS(sum == 11 && lists[0].count == 3);
    const Queue jobs = client.queue("jobs", 2);
    IS(jobs.handle() && std::string(jobs.name()) == "jobs" && jobs.put(client.draft({7, 8})) == 0 && jobs.put(client.draft({9}), 1min) == 1);
    IS(status_of([&] { jobs.put(client.draft({9}), 1ms); }) == TENSORLEND_TIMEOUT);
    {
        QueueItem first = jobs.get(), second = jobs.get(1min);
        IS(first.number() == 0 && first.span<int>()[1] == 8 && second.number() == 1);
        IS(jobs.waiting() == 0 && jobs.claimed() == 2 && status_of([&] { jobs.get(1ms); }) == TENSORLEND_TIMEOUT);
        first.give_back();
        IS(!first && status_of([&] { first.done(); }) == TENSORLEND_ARGUMENT);
    } // the second one is given back
    QueueItem job = jobs.get();
    const Lease eight = job.clone();
    IS(job.number() == 0 && job.done() && !job && eight.span<int>()[1] == 8);
    IS(jobs.waiting() == 1 && jobs.put(client.draft({10})) == 2);
    job = jobs.next(QueueItem{});
    job = jobs.next(std::move(job), 1min);
    IS(job.number() == 2 && jobs.waiting() == 0 && jobs.claimed() == 1);
    IS(status_of([&] { jobs.next(std::move(job), 1ms); }) == TENSORLEND_TIMEOUT && jobs.claimed() == 0);
    std::vector<Draft> drafts;
    for (int value = 11; value < 13; value++)
        drafts.push_back(client.draft({value}));
    IS(jobs.put_many(std::move(drafts)) == 3 && jobs.waiting() == 2 && jobs.put_many({}) == 0);
    IS(status_of([&] {
           std::vector<Draft> more;
           more.push_back(client.draft({13}));
           jobs.put_many(std::move(more), 1ms);
       }) == TENSORLEND_TIMEOUT);
    IS(client.clear("jobs"));

    client.rename_list("numbers", "others");
    IS(client.clear("others") && client.remove("one") && client.remove("two"));

    auto history = client.keep("loss", 2);
    for (float loss : {3.f, 2.f, 1.f})
        history.publish(client.draft({loss}));
    float last = 0;
    for (Lease kept : client.versions("loss"))
        last = *kept.data<float>();
    IS(client.versions("loss").size() == 2 && last == 1);
    history = {};
    IS(client.remove("loss") && client.delete_stream("loss")); // the values were a stream

    auto stream = client.stream("frames", 4);
    auto frames = client.subscribe("frames", TENSORLEND_START_OLDEST, {}, TENSORLEND_POLLABLE);
    stream.wait_subscribers(1);
    IS(frames.fd() >= 0 && !frames.try_recv() && stream.capacity() == 4);
    IS(status_of([&] { for (auto &&frame : frames.within(1ms)) IS(!frame); }) == TENSORLEND_TIMEOUT);
    auto dataset = client.dataset();
    dataset.add("left", client.draft({1}));
    dataset.add("right", client.draft({2}));
    stream.send(std::move(dataset));
    std::string members;
    const Message pair = frames.recv();
    for (const tensorlend_tensor &member : pair.members())
        members += member.name;
    IS(members == "leftright" && pair.data<int>("right")[0] == 2 && pair.span<int>("left").size() == 1);
    for (int number : {4, 5, 6})
        stream.send(client.draft({number}));
    auto fourth = client.draft({7}), fifth = client.draft({8});
    IS(stream.try_send(fourth) && !fourth && !stream.try_send(fifth) && fifth);
    stream = {};
    std::uint64_t total = 0;
    for (const Message &frame : frames) {
        total += frame.number * std::uint64_t(*frame.data<int>());
        if (frame.number == 2)
            break;
    }
    for (Message frame : frames.within(1min)) // the loop gives each message away
        total += std::uint64_t(*frame.data<int>());
    IS(total == 4 + 2 * 5 + 6 + 7 && frames.lost() == 0 && frames.position() == 5);
    IS(status_of([&] { frames.try_recv(); }) == TENSORLEND_STREAM_ENDED);
    client.stream("frames").send(client.draft({9})); // opened again: the subscription continues
    for (const Message &frame : frames)
        total += frame.number + std::uint64_t(*frame.data<int>());
    IS(total == 4 + 2 * 5 + 6 + 7 + 9 && frames.lost() == 0);
    client.delete_stream("frames");
}

static void test_requests(const Client &client) {
    std::thread thread([] {
        const Client own{Options().label("server")};
        Server server = own.serve("double");
        for (Request request : server) {
            const int asked = *request.data<int>();
            if (asked == 13)
                request.fail("an unlucky number");
            else
                request.respond(own.draft({2 * asked}));
            IS(!request);
            if (asked == 0)
                break;
        }
    });
    Caller caller = client.caller("double");
    const Lease response = caller.call(client.draft({21}), 1min);
    IS(*response.data<int>() == 42);
    IS(status_of([&] { caller.call(client.draft({13})); }) == TENSORLEND_REQUEST_FAILED);
    const std::uint64_t first = caller.send(client.draft({1})), second = caller.send(client.draft({2}));
    IS(caller.outstanding() == 2);
    Message one = caller.recv(), two = caller.recv(1min);
    IS(one.number == first && two.number == second && *one.data<int>() == 2 && *two.data<int>() == 4);
    int made_count = 0;
    const Lease last = caller.call_again([&] { return made_count++, client.draft({0}); }, 1min);
    IS(*last.data<int>() == 0 && made_count == 1);
    thread.join();
    IS(status_of([&] { client.put_remote("node7/x", std::vector<float>{1}); }) == TENSORLEND_REMOTE);
    IS(client.nodes().size() == 0 && client.placement("x").size() == 0);
    IS(status_of([&] { client.create_on<float>("cuda", {3}); }) == TENSORLEND_ARGUMENT);

    client.put_model("echo", std::string("onnx"), "{\"batch_max\": 4}");
    const Lease bytes = client.get_model("echo");
    const Listing models = client.models();
    IS(models[0].nbytes == 4 && bytes.metadata().find("\"batch_max\":4") != std::string_view::npos);
    Model model = client.model("echo");
    IS(status_of([&] { model.run(ModelRequest().input_from("x", "image").output_to("y", "classes"), 1ms); }) == TENSORLEND_TIMEOUT);
    IS(client.delete_model("echo") && client.memory().segment_bytes > 0);
    IS(status_of([&] { client.device_memory("gpu"); }) == TENSORLEND_ARGUMENT);
    IS(status_of([&] { published(bytes, "y"); }) == TENSORLEND_ARGUMENT);
    IS(bytes.version() == bytes.clone().version() && bytes.version() != tensorlend_version{});
}

int main() {
    Options options;
    check(tensorlend_options_new(options.out()));
    check(tensorlend_options_socket(options.handle(), "/nowhere"));
    IS(status_of([&] { Client nobody(options); }) == TENSORLEND_DISCONNECTED);

    IS(status_of([&] { Client nobody(Options().socket("/nowhere").remote_timeout(1s).request_timeout(forever)); }) == TENSORLEND_DISCONNECTED);

    Client client;
    const Stat stat = client.stat();
    IS(client.ping() > 0ns && stat.figures().clients > 0);
    test_elements(client);
    test_loops(client);
    test_requests(client);
    auto draft = counting(client, 4);
    IS(tensorlend_draft_bytes(draft.handle()) == 24);
    IS(thrown<std::invalid_argument>([&] { draft.data<float>(); }) == "the elements are u32, not f32: use their own type");
    check(tensorlend_draft_set_timestamp(draft.handle(), 12));
    const tensorlend_version version = std::move(draft).publish("numbers");
    IS(!draft && made<bool>(tensorlend_exists, client.handle(), "numbers"));
    IS(thrown<std::invalid_argument>([&] { draft.data<float>(); }).find("the draft has no elements: ") == 0);
    Lease lease = client.get("numbers");
    IS(lease.data<std::uint32_t>()[5] == 9 && lease.tensor().ndim == 2 && lease.tensor().timestamp_ns == 12);
    IS(tensorlend_version_equal(tensorlend_lease_version(lease.handle()), version));
    IS(thrown<std::invalid_argument>([&] { lease.data<float>(); }) == "the elements are u32, not f32: use their own type");
    const tensorlend_version second = client.put("numbers", std::vector<float>{1.5f, 2.5f});
    IS(lease.data<std::uint32_t>()[0] == 4);
    lease = client.wait_newer("numbers", version, 10s); // the old lease ends
    IS(lease.data<float>()[1] == 2.5f && tensorlend_version_equal(tensorlend_lease_version(lease.handle()), second));
    IS(status_of([&] { client.wait_newer("numbers", second, 1ms); }) == TENSORLEND_TIMEOUT);
    IS(status_of([&] { client.get("missing"); }) == TENSORLEND_NOT_FOUND);
    const std::uint64_t shape[] = {2, 2};
    const std::int64_t strides[] = {1, 2};
    draft = made<Draft>(tensorlend_create_strided, client.handle(), TENSORLEND_F32, 2, shape, strides, 0);
    std::move(draft).publish("transposed");
    lease = client.get("transposed");
    IS(thrown<std::invalid_argument>([&] { lease.data<float>(); }) == "the elements are strided: use copy, or tensor()");
    check(tensorlend_delete(client.handle(), "transposed", nullptr));

    auto frame = client.dataset();
    frame.add("left", counting(client, 1));
    frame.add("right", counting(client, 10));
    IS(status_of([&] { frame.add("right", counting(client, 20)); }) == TENSORLEND_ARGUMENT);
    std::move(frame).publish("frame");
    lease = client.get("frame");
    IS(lease.data<std::uint32_t>("right")[0] == 10 && std::strcmp(lease.tensor("left").name, "left") == 0);
    IS(thrown<std::out_of_range>([&] { lease.tensor("middle"); }) == "the leased value has no tensor named \"middle\": see members()");
    IS(thrown<std::out_of_range>([&] { lease.tensor(); }) == "the lease is on a dataset: give the name of a member");
    IS(thrown<std::out_of_range>([&] { lease.members()[2]; }) == "index 2 is out of range: the size is 2");
    const Lease empty;
    IS(thrown<std::out_of_range>([&] { empty.tensor(); }) == "the lease is empty: get one first");
    const Stat none;
    IS(thrown<std::out_of_range>([&] { none.figures(); }) == "the statistics are empty: get them with Client::stat");

    auto left = made<DLPack>(tensorlend_lease_to_dlpack, lease.handle(), "left");
    IS(left);
    left = {};
    check(tensorlend_lease_to_dlpack(lease.handle(), "left", left.out())); // ends with the program, after the client

    auto stream = client.stream("camera", 2);
    auto frames = client.subscribe("camera", TENSORLEND_START_OLDEST);
    check(tensorlend_stream_wait_subscribers(stream.handle(), 1, -1));
    IS(stream.send(counting(client, 5)) == 0 && stream.send(counting(client, 6), 1s) == 1);
    IS(status_of([&] { stream.send(counting(client, 7), 1ms); }) == TENSORLEND_TIMEOUT);
    std::uint64_t number = 7;
    Lease message = frames.recv(10s, &number);
    IS(message.data<std::uint32_t>()[0] == 5 && number == 0);
    IS(status_of([&] { Subscription().recv(); }) == TENSORLEND_ARGUMENT);
    stream = {};
    message = frames.recv();
    IS(message.data<std::uint32_t>()[0] == 6);
    IS(!frames.recv() && client.delete_stream("camera"));

    auto listing = made<Listing>(tensorlend_list_names, client.handle(), "*");
    IS(tensorlend_listing_count(listing.handle()) == 2);
    check(tensorlend_list_names(client.handle(), "f*", listing.out()));
    IS(tensorlend_listing_count(listing.handle()) == 1);
    IS(made<bool>(tensorlend_delete, client.handle(), "frame") && made<bool>(tensorlend_delete, client.handle(), "numbers"));
    std::cout << "all is well\n";
}
