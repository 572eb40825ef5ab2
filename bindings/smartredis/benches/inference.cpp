// Puts a tensor, runs a model on it, and unpacks the output, and counts how often this happens in SECONDS (5).
//
// usage: smartredis-inference [SECONDS [ELEMENTS [MODEL]]]
//
// SSDB and the daemon are those of the library. A tensorlend-runner must run. MODEL is an ONNX file with one input of type
// f32 and shape [ELEMENTS] (1024), and one output of the same type and shape. Without MODEL, the program uses a model that
// doubles each element, and compares each output. The model is the cheapest one, so the program measures the path to it.
#include "client.h"
#include <string_view>
#include <unistd.h>

namespace {
using Clock = std::chrono::steady_clock;

/// ONNX: y = x + x, of type f32 and shape [N], with version 17 of the operators. Lengths precede the nested messages.
constexpr std::string_view DOUBLING("\x08\x08" // the version of the format
                                    ":7"       // the graph
                                    "\n\x0e\n\x01x\n\x01x\x12\x01y\"\x03" "Add"
                                    "\x12\x01" "d"
                                    "Z\x10\n\x01x\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01N"
                                    "b\x10\n\x01y\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01N"
                                    "B\x04\n\x00\x10\x11",
                                    65);

void infer(double seconds, size_t elements, const char* file) {
    SmartRedis::Client client("inference");
    // A name of its own: after a model was replaced, one call takes a second longer.
    const std::string model = "model " + std::to_string(getpid());
    if (file == nullptr)
        client.set_model(model, DOUBLING, "ONNX", "CPU");
    else
        client.set_model_from_file(model, file, "ONNX", "CPU");
    std::vector<float> in(elements), out(elements);
    std::vector<double> took; // in microseconds
    // The first iteration also waits until the runner has loaded the model. It does not count.
    for (auto from = Clock::now(), start = from; took.size() < 2 || Clock::now() - from < std::chrono::duration<double>(seconds);) {
        std::fill(in.begin(), in.end(), float(took.size() % 1000));
        start = Clock::now();
        client.put_tensor("in", in.data(), {elements}, SRTensorTypeFloat, SRMemLayoutContiguous);
        client.run_model(model, {"in"}, {"out"});
        client.unpack_tensor("out", out.data(), {elements}, SRTensorTypeFloat, SRMemLayoutContiguous);
        const auto end = Clock::now();
        if (took.empty())
            from = end;
        took.push_back(std::chrono::duration<double, std::micro>(end - start).count());
        if (file == nullptr && !std::equal(in.begin(), in.end(), out.begin(), [](float x, float y) { return x + x == y; }))
            throw std::runtime_error("iteration " + std::to_string(took.size()) + ": the output is not the doubled input");
    }
    took.erase(took.begin());
    std::sort(took.begin(), took.end());
    double sum = 0;
    for (const double each : took)
        sum += each;
    const size_t count = took.size();
    std::puts("| elements | iterations | iterations/s | p50, us | p99, us |");
    std::puts("|--:|--:|--:|--:|--:|");
    std::printf("| %zu | %zu | %.0f | %.1f | %.1f |\n", elements, count, 1e6 * double(count) / sum, took[count / 2],
                took[count * 99 / 100]);
    client.delete_model(model);
}
} // namespace

int main(int argc, char** argv) {
    try {
        infer(argc > 1 ? std::stod(argv[1]) : 5, argc > 2 ? std::stoul(argv[2]) : 1024, argc > 3 ? argv[3] : nullptr);
    } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
}
