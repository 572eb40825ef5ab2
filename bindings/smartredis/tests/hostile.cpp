// A client that a test treats badly: the daemon is killed, many clients come and go, threads share the client. The program
// reads an order from each line, and answers with a line: "ok TEXT", or "error CODE TEXT".
#include "client.h"
#include <filesystem>
#include <functional>
#include <iostream>
#include <thread>

using namespace SmartRedis;

namespace {
const std::vector<size_t> SHAPE = {100};

void check(bool right, const char* what) {
    if (!right)
        throw SRInternalException(what);
}

/// Calls that need the daemon. Returns the length of a list to which the call appended.
std::string ask(Client& client) {
    DataSet dataset("state");
    dataset.add_meta_string("place", "Orl\xe9" "ans");
    client.put_dataset(dataset);
    client.append_to_list("list", dataset);
    const int length = client.get_list_length("list");
    check(int(client.get_datasets_from_list("list").size()) == length, "the list has another length");
    return std::to_string(length);
}

/// Calls of a thread on tensors that all threads put, each with its number in all elements.
void use(Client& client, double number) {
    const std::vector<double> written(SHAPE[0], number);
    std::vector<double> read(SHAPE[0]);
    for (int round = 0; round < 50; round++) {
        const std::string name = "shared " + std::to_string(round % 3);
        client.put_tensor(name, written.data(), SHAPE, SRTensorTypeDouble, SRMemLayoutContiguous);
        client.unpack_tensor(name, read.data(), SHAPE, SRTensorTypeDouble, SRMemLayoutContiguous);
        check(read == std::vector<double>(SHAPE[0], read[0]), "a tensor has elements of two threads");
        void* data = nullptr;
        std::vector<size_t> dims;
        SRTensorType type = SRTensorTypeInvalid;
        client.get_tensor(name, data, dims, type, SRMemLayoutNested);
        check(dims == SHAPE && type == SRTensorTypeDouble, "a tensor has another shape");
        DataSet dataset("set " + std::to_string(number));
        dataset.add_tensor("t", written.data(), SHAPE, SRTensorTypeDouble, SRMemLayoutContiguous);
        client.put_dataset(dataset);
        check(client.get_dataset(dataset.get_name()).get_tensor_names().size() == 1, "a dataset lost its tensor");
        client.append_to_list("shared", dataset);
    }
}

void in_threads(size_t count, const std::function<void(size_t)>& call) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(count);
    for (size_t at = 0; at < count; at++)
        threads.emplace_back([&, at] {
            try {
                call(at);
            } catch (...) {
                failures[at] = std::current_exception();
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    for (const std::exception_ptr& failure : failures)
        if (failure)
            std::rethrow_exception(failure);
}

size_t open_files() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return size_t(std::distance(begin(files), end(files)));
}

/// Makes and ends clients, one after the other. The process must have no more open files then.
std::string clients() {
    size_t before = 0;
    for (int at = 0; at < 100; at++) {
        Client client("short");
        ask(client);
        if (at == 10)
            before = open_files();
    }
    check(open_files() <= before, "clients left files open");
    return "100";
}

std::string obey(Client& client, const std::string& order) {
    if (order == "ask")
        return ask(client);
    if (order == "ask in a thread") {
        std::string length;
        in_threads(1, [&](size_t) { length = ask(client); });
        return length;
    }
    if (order == "threads") {
        in_threads(8, [&](size_t at) { use(client, double(at)); });
        return std::to_string(client.get_list_length("shared"));
    }
    if (order == "clients")
        return clients();
    throw SRParameterException("no such order");
}
} // namespace

int main() {
    Client client("hostile");
    for (std::string order; std::getline(std::cin, order);) {
        try {
            const std::string answer = obey(client, order);
            std::cout << "ok " << answer << std::endl;
        } catch (const Exception& error) {
            std::cout << "error " << error.to_error_code() << ' ' << error.what() << std::endl;
        }
    }
}
