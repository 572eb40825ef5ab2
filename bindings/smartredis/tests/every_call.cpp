// Every call of the C++ interface, and its errors. Needs SSDB, SSKEYIN=one,two and SSKEYOUT=one, SR_MODEL_TIMEOUT=1.
#include "client.h"
#include "logcontext.h"
#include "redis.h"
#include "rediscluster.h"
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <typeinfo>
#include <unistd.h>

using namespace SmartRedis;

namespace {
#define CHECK(condition)                                                                                                          \
    do {                                                                                                                          \
        if (!(condition)) {                                                                                                       \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " #condition "\n  last error: " << SRGetLastError() << std::endl;      \
            std::exit(1);                                                                                                         \
        }                                                                                                                         \
    } while (0)
#define THROWS(type, call) CHECK(throws<type>([&] { call; }))

template <typename E, typename Call> bool throws(Call call) {
    try {
        call();
    } catch (const E& error) {
        return typeid(error) == typeid(E) && error.to_error_code() != SRNoError && error.what()[0] != '\0' && error.where()[0] != '\0';
    }
    return false;
}

std::string name(const char* base) { return std::string(base) + std::to_string(getpid()); }

/// Elements 0, 1, 2, ... in row-major order, at each index of a 2 x 3 x 4 tensor.
const std::vector<size_t> SHAPE = {2, 3, 4};

template <typename T> void layouts(Client& client, SRTensorType type) {
    std::vector<T> row(24), column(24), got(24);
    std::iota(row.begin(), row.end(), T(0));
    std::vector<T*> lines(6);
    std::vector<T**> planes(2);
    for (size_t i = 0; i < 2; i++) {
        planes[i] = &lines[3 * i];
        for (size_t j = 0; j < 3; j++) {
            lines[3 * i + j] = &row[(i * 3 + j) * 4];
            for (size_t k = 0; k < 4; k++)
                column[i + 2 * j + 6 * k] = row[(i * 3 + j) * 4 + k];
        }
    }
    const void* memory[] = {nullptr, planes.data(), row.data(), nullptr, column.data()};
    for (const SRMemoryLayout from : {SRMemLayoutNested, SRMemLayoutContiguous, SRMemLayoutFortranContiguous}) {
        client.put_tensor("t", memory[from], SHAPE, type, from);
        DataSet dataset("layouts");
        dataset.add_tensor("t", memory[from], SHAPE, type, from);
        client.put_dataset(dataset);
        DataSet fetched = client.get_dataset("layouts");
        const auto verify = [&](auto get, auto unpack) {
            void* data = nullptr;
            std::vector<size_t> dims;
            SRTensorType found = SRTensorTypeInvalid;
            get(data, dims, found, SRMemLayoutContiguous);
            CHECK(dims == SHAPE && found == type && std::equal(row.begin(), row.end(), static_cast<T*>(data)));
            get(data, dims, found, SRMemLayoutFortranContiguous);
            CHECK(std::equal(column.begin(), column.end(), static_cast<T*>(data)));
            get(data, dims, found, SRMemLayoutNested);
            CHECK(static_cast<T***>(data)[1][2][3] == row[23] && static_cast<T***>(data)[1][0][1] == row[13]);
            got.assign(24, T(0));
            unpack(got.data(), std::vector<size_t>{24}, SRMemLayoutContiguous);
            CHECK(got == row);
            unpack(got.data(), SHAPE, SRMemLayoutFortranContiguous);
            CHECK(got == column);
            std::vector<T> copy(24);
            std::vector<T*> copy_lines(6);
            std::vector<T**> copy_planes = {&copy_lines[0], &copy_lines[3]};
            for (size_t at = 0; at < 6; at++)
                copy_lines[at] = &copy[4 * at];
            unpack(copy_planes.data(), SHAPE, SRMemLayoutNested);
            CHECK(copy == row);
        };
        verify([&](auto&&... given) { client.get_tensor("t", given...); },
               [&](void* to, const std::vector<size_t>& dims, SRMemoryLayout layout) { client.unpack_tensor("t", to, dims, type, layout); });
        verify([&](auto&&... given) { fetched.get_tensor("t", given...); },
               [&](void* to, const std::vector<size_t>& dims, SRMemoryLayout layout) { fetched.unpack_tensor("t", to, dims, type, layout); });
    }
}

void tensors(Client& client) {
    layouts<double>(client, SRTensorTypeDouble);
    layouts<float>(client, SRTensorTypeFloat);
    layouts<int8_t>(client, SRTensorTypeInt8);
    layouts<int16_t>(client, SRTensorTypeInt16);
    layouts<int32_t>(client, SRTensorTypeInt32);
    layouts<int64_t>(client, SRTensorTypeInt64);
    layouts<uint8_t>(client, SRTensorTypeUint8);
    layouts<uint16_t>(client, SRTensorTypeUint16);

    const float values[] = {1.5f, 2.5f};
    float got[2] = {};
    client.put_tensor("a", values, {2}, SRTensorTypeFloat, SRMemLayoutContiguous);
    void* data = nullptr;
    size_t* dims = nullptr;
    size_t n_dims = 0;
    SRTensorType type = SRTensorTypeInvalid;
    client.get_tensor("a", data, dims, n_dims, type, SRMemLayoutContiguous);
    CHECK(n_dims == 1 && dims[0] == 2 && type == SRTensorTypeFloat && static_cast<float*>(data)[1] == 2.5f);

    CHECK(client.tensor_exists("a") && client.key_exists("one.a") && !client.key_exists("a") && !client.key_exists(""));
    CHECK(client.poll_tensor("a", 1, 1) && client.poll_key("one.a", 1, 1) && !client.poll_tensor("none", 1, 2) && !client.poll_key("none", 1, 2));
    client.copy_tensor("a", "b");
    client.rename_tensor("b", "c");
    client.rename_tensor("c", "c");
    CHECK(!client.tensor_exists("b"));
    client.unpack_tensor("c", got, {2}, SRTensorTypeFloat, SRMemLayoutContiguous);
    CHECK(got[0] == 1.5f && got[1] == 2.5f);
    client.delete_tensor("c");
    client.delete_tensor("c");
    CHECK(!client.tensor_exists("c"));

    const std::vector<size_t> two = {2};
    THROWS(RuntimeException, client.get_tensor("none", data, dims, n_dims, type, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.get_tensor("a", data, dims, n_dims, type, SRMemLayoutFortranNested));
    THROWS(RuntimeException, client.unpack_tensor("none", got, two, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.unpack_tensor("a", got, {3}, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.unpack_tensor("a", got, {1, 2}, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.unpack_tensor("a", got, {1, 2}, SRTensorTypeFloat, SRMemLayoutNested));
    THROWS(RuntimeException, client.unpack_tensor("a", got, {3, 2}, SRTensorTypeFloat, SRMemLayoutFortranContiguous));
    THROWS(RuntimeException, client.unpack_tensor("a", got, two, SRTensorTypeInt32, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.unpack_tensor("a", nullptr, two, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(TypeException, client.put_tensor("x", values, two, SRTensorTypeInvalid, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.put_tensor("x", nullptr, two, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.put_tensor("", values, two, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.put_tensor(std::string("a\0b", 3), values, two, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.put_tensor(".meta", values, two, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.put_tensor("x", values, {}, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.put_tensor("x", values, {0}, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.put_tensor("x", values, two, SRTensorTypeFloat, SRMemLayoutFortranNested));
    THROWS(RuntimeException, client.put_tensor(std::string(300, 'n'), values, two, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(BadAllocException, client.put_tensor("x", values, {size_t(1) << 40, size_t(1) << 40}, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.rename_tensor("none", "x"));
    THROWS(RuntimeException, client.rename_tensor("none", "none"));
    THROWS(RuntimeException, client.copy_tensor("none", "x"));
}

void in_place(Client& client) {
    for (const SRMemoryLayout layout : {SRMemLayoutContiguous, SRMemLayoutFortranContiguous}) {
        TensorDraft draft = client.draft_tensor({2, 3}, SRTensorTypeInt32, layout);
        CHECK(draft.bytes() == 24 && draft.data() != nullptr);
        for (int at = 0; at < 6; at++)
            static_cast<int32_t*>(draft.data())[at] = at;
        client.put_tensor("draft", draft);
        CHECK(draft.data() == nullptr && draft.bytes() == 0);
        THROWS(ParameterException, client.put_tensor("draft", draft));
        const TensorLease lease = client.lease_tensor("draft");
        CHECK(lease.dims() == (std::vector<size_t>{2, 3}) && lease.type() == SRTensorTypeInt32 && lease.layout() == layout);
        const int32_t other = 7;
        client.put_tensor("draft", &other, {1}, SRTensorTypeInt32, SRMemLayoutContiguous);
        CHECK(static_cast<const int32_t*>(lease.data())[5] == 5);
    }
    CHECK(TensorLease().data() == nullptr && TensorLease().dims().empty() && TensorLease().layout() == SRMemLayoutInvalid);
    THROWS(RuntimeException, client.draft_tensor({2}, SRTensorTypeInt32, SRMemLayoutNested));
    THROWS(TypeException, client.draft_tensor({2}, SRTensorTypeInvalid, SRMemLayoutContiguous));
    THROWS(RuntimeException, client.lease_tensor("none"));
}

template <typename T> void number(DataSet& dataset, Client& client, SRMetaDataType type, std::vector<T> values) {
    const std::string field = "number" + std::to_string(type);
    for (const T& value : values)
        dataset.add_meta_scalar(field, &value, type);
    client.put_dataset(dataset);
    DataSet fetched = client.get_dataset(dataset.get_name());
    void* data = nullptr;
    size_t length = 0;
    SRMetaDataType found = SRMetadataTypeInvalid;
    fetched.get_meta_scalars(field, data, length, found);
    CHECK(found == type && length == values.size() && fetched.get_metadata_field_type(field) == type);
    for (size_t at = 0; at < length; at++) {
        const T value = static_cast<T*>(data)[at];
        CHECK(value == values[at] || (value != value && values[at] != values[at]));
    }
}

template <typename T> std::vector<T> extremes() {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity)
        return {T(0.1), Limits::min(), Limits::max(), -Limits::infinity(), Limits::infinity(), Limits::quiet_NaN()};
    return {Limits::min(), Limits::max(), T(1)};
}

/// Bytes that are no UTF-8, among characters of one to four bytes.
void odd_bytes(Client& client) {
    DataSet dataset("odd");
    for (const char* text : {"caf\xe9", "\xff\xc3\xa9\x80", "\xed\xb3\xa9", "\xe2\x82", "\xf0\x9f\x8c\x8a\xf5", "\xc0\x80"})
        dataset.add_meta_string("bytes", text);
    client.put_dataset(dataset);
    CHECK(client.get_dataset("odd").get_meta_strings("bytes") == dataset.get_meta_strings("bytes"));
}

void moved_datasets(Client& client) {
    DataSet dataset("moved");
    DataSet taken(std::move(dataset));
    CHECK(taken.get_name() == "moved");
    THROWS(ParameterException, dataset.get_name());
    THROWS(ParameterException, dataset.add_meta_string("text", "a"));
    THROWS(ParameterException, client.put_dataset(dataset));
    THROWS(ParameterException, DataSet(dataset).get_name());
    dataset = taken;
    CHECK(dataset.get_name() == "moved");
}

void datasets(Client& client) {
    DataSet dataset("set");
    CHECK(dataset.get_name() == "set");
    THROWS(RuntimeException, client.put_dataset(dataset));
    number(dataset, client, SRMetadataTypeDouble, extremes<double>());
    number(dataset, client, SRMetadataTypeFloat, extremes<float>());
    number(dataset, client, SRMetadataTypeInt32, extremes<int32_t>());
    number(dataset, client, SRMetadataTypeInt64, extremes<int64_t>());
    number(dataset, client, SRMetadataTypeUint32, extremes<uint32_t>());
    number(dataset, client, SRMetadataTypeUint64, extremes<uint64_t>());
    dataset.add_meta_string("text", "a \"quoted\" \\ line\n\t\x01 caf\xc3\xa9");
    dataset.add_meta_string("text", "");
    const double values[] = {1, 2, 3};
    dataset.add_tensor("field", values, {3}, SRTensorTypeDouble, SRMemLayoutContiguous);
    client.put_dataset(dataset);
    CHECK(client.dataset_exists("set") && client.poll_dataset("set", 1, 1) && !client.poll_dataset("none", 1, 1));
    CHECK(client.key_exists("one.{set}.meta") && client.key_exists("one.{set}.field") && !client.key_exists("one.{set}.none"));
    CHECK(client.tensor_exists("{set}.field"));
    client.copy_tensor("{set}.field", "member");
    double got[3] = {};
    client.unpack_tensor("member", got, {3}, SRTensorTypeDouble, SRMemLayoutContiguous);
    CHECK(got[2] == 3);

    client.copy_dataset("set", "copy");
    client.rename_dataset("copy", "moved");
    client.rename_dataset("moved", "moved");
    CHECK(!client.dataset_exists("copy"));
    DataSet fetched = client.get_dataset("moved");
    CHECK(fetched.get_meta_strings("text") == dataset.get_meta_strings("text"));
    CHECK(fetched.get_tensor_names() == std::vector<std::string>{"field"});
    CHECK(fetched.get_tensor_type("field") == SRTensorTypeDouble && fetched.get_tensor_dims("field") == std::vector<size_t>{3});
    CHECK(fetched.get_metadata_field_names() == dataset.get_metadata_field_names() && fetched.get_metadata_field_names().size() == 7);
    char** strings = nullptr;
    size_t* lengths = nullptr;
    size_t count = 0;
    fetched.get_meta_strings("text", strings, count, lengths);
    CHECK(count == 2 && lengths[1] == 0 && std::string(strings[0], lengths[0]) == fetched.get_meta_strings("text")[0]);
    fetched.get_tensor_names(strings, count, lengths);
    CHECK(count == 1 && std::string(strings[0]) == "field");
    fetched.get_metadata_field_names(strings, count, lengths);
    CHECK(count == 7 && lengths[6] == 4 && std::string(strings[6]) == "text");
    size_t* dims = nullptr;
    void* data = nullptr;
    SRTensorType type = SRTensorTypeInvalid;
    fetched.get_tensor("field", data, dims, count, type, SRMemLayoutContiguous);
    CHECK(count == 1 && dims[0] == 3);

    DataSet copied(fetched), assigned("other");
    assigned = copied;
    const DataSet moved(std::move(fetched));
    CHECK(static_cast<double*>(data)[2] == 3); // memory of the moved dataset
    assigned.clear_field("text");
    CHECK(!assigned.has_field("text") && copied.has_field("text") && moved.has_field("text"));
    assigned.set_name("named");
    CHECK(assigned.get_name() == "named" && !moved.to_string().empty() && !assigned.get_context().empty());
    std::cout << moved;

    DataSet large("large");
    for (int at = 0; at < 9000; at++)
        large.add_meta_string("many", "ten bytes.");
    client.put_dataset(large);
    CHECK(client.get_dataset("large").get_meta_strings("many").size() == 9000);
    CHECK(client.get_dataset("large").get_tensor_names().empty());

    size_t length = 0;
    SRMetaDataType kind = SRMetadataTypeInvalid;
    THROWS(ParameterException, assigned.set_name(""));
    THROWS(RuntimeException, dataset.add_tensor("field", values, {3}, SRTensorTypeDouble, SRMemLayoutContiguous));
    THROWS(RuntimeException, dataset.add_tensor("new", values, {3}, SRTensorTypeInvalid, SRMemLayoutContiguous));
    THROWS(RuntimeException, dataset.add_tensor("", values, {3}, SRTensorTypeDouble, SRMemLayoutContiguous));
    THROWS(KeyException, dataset.get_tensor("none", data, dims, count, type, SRMemLayoutContiguous));
    THROWS(KeyException, dataset.unpack_tensor("none", got, {3}, SRTensorTypeDouble, SRMemLayoutContiguous));
    THROWS(RuntimeException, dataset.unpack_tensor("field", got, {3}, SRTensorTypeFloat, SRMemLayoutContiguous));
    THROWS(RuntimeException, dataset.unpack_tensor("field", got, {2}, SRTensorTypeDouble, SRMemLayoutContiguous));
    THROWS(KeyException, dataset.get_tensor_type("none"));
    THROWS(KeyException, dataset.get_tensor_dims("none"));
    THROWS(KeyException, dataset.get_metadata_field_type("none"));
    THROWS(RuntimeException, dataset.get_meta_strings("none"));
    THROWS(RuntimeException, dataset.get_meta_strings("number1"));
    THROWS(RuntimeException, dataset.get_meta_scalars("text", data, length, kind));
    THROWS(RuntimeException, dataset.get_meta_scalars("none", data, length, kind));
    THROWS(RuntimeException, dataset.add_meta_string("number1", "text"));
    THROWS(RuntimeException, dataset.add_meta_scalar("number1", values, SRMetadataTypeInt64));
    THROWS(RuntimeException, dataset.add_meta_scalar("new", values, SRMetadataTypeString));
    THROWS(RuntimeException, dataset.add_meta_scalar("new", nullptr, SRMetadataTypeDouble));
    THROWS(KeyException, client.get_dataset("none"));
    THROWS(KeyException, client.copy_dataset("none", "x"));
    THROWS(KeyException, client.rename_dataset("none", "x"));
    client.delete_dataset("moved");
    THROWS(RuntimeException, client.delete_dataset("moved"));
}

void lists(Client& client) {
    CHECK(client.get_list_length("list") == 0 && client.get_datasets_from_list("list").empty());
    for (int at = 0; at < 3; at++) {
        DataSet dataset("item" + std::to_string(at));
        dataset.add_meta_scalar("at", &at, SRMetadataTypeInt32);
        client.put_dataset(dataset);
        client.append_to_list("list", dataset);
    }
    CHECK(client.get_list_length("list") == 3 && client.get_datasets_from_list("list")[2].get_name() == "item2");
    CHECK(client.get_dataset_list_range("list", -2, -1).size() == 2 && client.get_dataset_list_range("list", 1, 9).size() == 2);
    CHECK(client.get_dataset_list_range("list", 2, 1).empty() && client.get_dataset_list_range("list", 0, 0)[0].get_name() == "item0");
    CHECK(client.poll_list_length("list", 3, 1, 1) && !client.poll_list_length("list", 4, 1, 2) && !client.poll_list_length("list", 3, 1, 0));
    CHECK(client.poll_list_length_gte("list", 2, 1, 1) && !client.poll_list_length_gte("list", 4, 1, 2));
    CHECK(client.poll_list_length_lte("list", 3, 1, 1) && !client.poll_list_length_lte("list", 2, 1, 2));
    client.copy_list("list", "copy");
    client.rename_list("copy", "moved");
    client.rename_list("moved", "moved");
    CHECK(client.get_list_length("copy") == 0 && client.get_list_length("moved") == 3 && client.key_exists("one.moved"));
    client.delete_dataset("item1");
    CHECK(client.get_datasets_from_list("moved")[1].get_metadata_field_names().empty());
    client.delete_list("moved");
    client.delete_list("moved");
    CHECK(client.get_list_length("moved") == 0);
    THROWS(RuntimeException, client.copy_list("none", "x"));
    THROWS(ParameterException, client.copy_list("", "x"));
    THROWS(ParameterException, client.rename_list("x", ""));
    THROWS(RuntimeException, client.rename_list("none", "x"));
    THROWS(ParameterException, client.get_datasets_from_list(""));
    THROWS(ParameterException, client.get_dataset_list_range("", 0, 1));
    THROWS(ParameterException, client.poll_list_length("list", -1, 1, 1));
    THROWS(ParameterException, client.poll_list_length_gte("list", -1, 1, 1));
    THROWS(ParameterException, client.poll_list_length_lte("list", -1, 1, 1));
}

void models(Client& client) {
    const std::string bytes = "an ONNX file", file = name("/tmp/smartredis-model-");
    std::ofstream(file) << bytes;
    client.set_model("model", bytes, "ONNX", "CPU", 4, 2, 1, "a \"tag\"");
    CHECK(client.model_exists("model") && client.poll_model("model", 1, 1) && !client.poll_model("none", 1, 1));
    CHECK(client.get_model("model") == bytes);
    client.set_model_multigpu("multi", bytes, "ONNX", 0, 2);
    client.set_model_from_file("file", file, "ONNX", "GPU:0");
    client.set_model_from_file_multigpu("files", file, "ONNX", 0, 1);
    CHECK(client.get_model("files") == bytes);
    client.set_model_chunk_size(1024);
    CHECK(client.get_ai_info("127.0.0.1:6379", "model", true)["tag"] == "a \"tag\"");
    // No runner is here.
    THROWS(TimeoutException, client.run_model("model", {"a"}, {"b"}));
    THROWS(TimeoutException, client.run_model_multigpu("model", {"a"}, {"b"}, 0, 0, 1));
    THROWS(RuntimeException, client.run_model("none", {"a"}, {"b"}));
    THROWS(ParameterException, client.run_model_multigpu("model", {"a"}, {"b"}, 0, -1, 1));
    THROWS(RuntimeException, client.set_model("x", bytes, "TORCH", "CPU"));
    THROWS(RuntimeException, client.set_model("x", bytes, "ONNX", "TPU"));
    THROWS(RuntimeException, client.set_model("x", bytes, "ONNX", "CPU", 0, 1));
    THROWS(RuntimeException, client.set_model("x", bytes, "ONNX", "CPU", 2, 0, 1));
    THROWS(ParameterException, client.set_model("", bytes, "ONNX", "CPU"));
    THROWS(ParameterException, client.set_model("x", bytes, "", "CPU"));
    THROWS(ParameterException, client.set_model("x", bytes, "ONNX", ""));
    THROWS(ParameterException, client.set_model("x", bytes, "ONNX", "CPU", 0, 0, 0, "", {"input"}));
    THROWS(ParameterException, client.set_model_multigpu("x", bytes, "ONNX", 0, 0));
    THROWS(ParameterException, client.set_model_from_file("x", "", "ONNX", "CPU"));
    THROWS(RuntimeException, client.set_model_from_file("x", "/no/such/file", "ONNX", "CPU"));
    THROWS(RuntimeException, client.get_model("none"));
    client.delete_model("model");
    client.delete_model("model");
    client.delete_model_multigpu("multi", 0, 2);
    CHECK(!client.model_exists("model") && !client.model_exists("multi"));
    THROWS(ParameterException, client.delete_model_multigpu("multi", 0, 0));

    THROWS(RuntimeException, client.set_script("s", "CPU", "def f(): pass"));
    CHECK(std::string(SRGetLastError()).find("ONNX") != std::string::npos);
    THROWS(ParameterException, client.set_script("s", "", "def f(): pass"));
    THROWS(RuntimeException, client.set_script_multigpu("s", "def f(): pass", 0, 1));
    THROWS(ParameterException, client.set_script_multigpu("s", "def f(): pass", 0, 0));
    THROWS(RuntimeException, client.set_script_from_file("s", "CPU", file));
    THROWS(RuntimeException, client.set_script_from_file_multigpu("s", file, 0, 1));
    THROWS(RuntimeException, client.get_script("s"));
    THROWS(RuntimeException, client.run_script("s", "f", {"a"}, {"b"}));
    THROWS(RuntimeException, client.run_script_multigpu("s", "f", {"a"}, {"b"}, 0, 0, 1));
    THROWS(RuntimeException, client.delete_script("s"));
    THROWS(RuntimeException, client.delete_script_multigpu("s", 0, 1));
    std::remove(file.c_str());
}

void prefixes(Client& client) {
    const int32_t value = 1;
    client.set_data_source("two");
    CHECK(!client.tensor_exists("a"));
    client.set_data_source("one");
    CHECK(client.tensor_exists("a"));
    THROWS(RuntimeException, client.set_data_source("three"));
    client.use_tensor_ensemble_prefix(false);
    client.put_tensor("bare", &value, {1}, SRTensorTypeInt32, SRMemLayoutContiguous);
    CHECK(client.key_exists("bare"));
    client.use_tensor_ensemble_prefix(true);
    DataSet dataset("bare");
    dataset.add_meta_string("a", "b");
    client.use_dataset_ensemble_prefix(false);
    client.use_list_ensemble_prefix(false);
    client.put_dataset(dataset);
    client.append_to_list("bare list", dataset);
    CHECK(client.key_exists("{bare}.meta") && client.key_exists("bare list"));
    client.use_dataset_ensemble_prefix(true);
    client.use_list_ensemble_prefix(true);
    client.use_model_ensemble_prefix(true);
    client.set_model("prefixed", "bytes", "ONNX", "CPU");
    client.use_model_ensemble_prefix(false);
    CHECK(client.model_exists("one.prefixed") && !client.model_exists("prefixed"));
}

void nodes(Client& client) {
    const std::string address = "127.0.0.1:6379";
    CHECK(client.get_db_node_info(address)["Persistence"]["rdb_last_save_time"] == "0");
    CHECK(!client.get_db_node_info(address)["Server"]["process_id"].empty());
    client.config_set("lua-time-limit", "4000", address);
    CHECK(client.config_get("lua*", address)["lua-time-limit"] == "4000" && client.config_get("none", address).empty());
    CHECK(client.config_get("*", address).size() == 9);
    client.config_set("ignore-warnings", "ARM64-COW-BUG", address);
    CHECK(client.config_get("ignore-warnings", address)["ignore-warnings"] == "ARM64-COW-BUG");
    client.save(address);
    THROWS(RuntimeException, client.config_set("none", "1", address));
    THROWS(RuntimeException, client.config_set("maxclients", "many", address));
    THROWS(RuntimeException, client.get_db_cluster_info(address));
    THROWS(RuntimeException, client.get_db_node_info("no address"));
    THROWS(RuntimeException, client.get_db_node_info("127.0.0.1:1"));
    CHECK(!client.get_db_node_info("tcp://" + address).empty());
    THROWS(RuntimeException, client.get_ai_info(address, "none", false));
    CHECK(Client(true).get_db_cluster_info("any:1")["cluster_state"] == "ok");
    client.flush_db(address);
    CHECK(!client.tensor_exists("a") && client.get_list_length("list") == 0);
    CHECK(client.config_get("lua*", address)["lua-time-limit"] == "4000");
}

void options() {
    setenv("NUMBER_db", "17", 1);
    setenv("TEXT_db", "text", 1);
    setenv("EMPTY_db", "", 1);
    setenv("WRONG_db", "0.5", 1);
    setenv("LARGE_db", "99999999999", 1);
    auto given = ConfigOptions::create_from_environment("db");
    CHECK(given->get_integer_option("NUMBER") == 17 && given->get_string_option("TEXT") == "text");
    CHECK(given->get_integer_option("EMPTY") == -1 && given->is_configured("EMPTY") && !given->is_configured("NONE"));
    THROWS(KeyException, given->get_integer_option("NONE"));
    THROWS(KeyException, given->get_string_option("NONE"));
    THROWS(KeyException, given->get_string_option(""));
    THROWS(ParameterException, given->get_integer_option("WRONG"));
    THROWS(ParameterException, given->get_integer_option("LARGE"));
    given->override_integer_option("NONE", 5);
    given->override_string_option("SOME", "thing");
    CHECK(given->get_integer_option("NONE") == 5 && given->get_string_option("SOME") == "thing" && given->is_configured("NONE"));
    const std::unique_ptr<ConfigOptions> clone(given->clone());
    given->_clear_option_from_cache("NONE");
    CHECK(clone->get_integer_option("NONE") == 5 && !given->is_configured("NONE"));
    CHECK(given->_resolve_string_option("NONE", "x") == "x" && given->_resolve_integer_option("FEW", 3) == 3);
    THROWS(RuntimeException, given->_get_log_context());
    LogContext context("options");
    given->_set_log_context(&context);
    CHECK(given->_get_log_context() == &context);

    auto plain = ConfigOptions::create_from_environment(static_cast<const char*>(nullptr));
    Client client(plain.get(), "with options");
    plain->override_string_option("SSDB", "");
    THROWS(RuntimeException, Client(plain.get()));
    plain->override_string_option("SSDB", "no address");
    THROWS(RuntimeException, Client(plain.get()));
    plain->override_string_option("SSDB", "unix:///no/such/socket");
    plain->override_integer_option("SR_CONN_TIMEOUT", 1);
    plain->override_integer_option("SR_CONN_INTERVAL", 700);
    THROWS(DatabaseException, Client(plain.get()));
    plain->override_integer_option("SR_CMD_TIMEOUT", 0);
    THROWS(ParameterException, Client(plain.get()));
    THROWS(ParameterException, Client(static_cast<ConfigOptions*>(nullptr)));
    plain->override_string_option("SR_DB_TYPE", "none");
    THROWS(RuntimeException, Client(plain.get()));
    THROWS(RuntimeException, RedisCluster(plain.get()));
    THROWS(RuntimeException, Redis(plain.get()));
}

void addresses() {
    CHECK(SRAddress("tcp://host:65535") == SRAddress("host:65535") && !(SRAddress("host:1") == SRAddress("host:2")));
    CHECK(SRAddress("host:1")._tcp_host == "host" && SRAddress("host:1")._tcp_port == 1 && SRAddress("host:1")._is_tcp);
    CHECK(SRAddress("unix:///a/b")._uds_file == "/a/b" && SRAddress("unix:///a/b").to_string(true) == "unix:///a/b");
    CHECK(SRAddress("host:007").to_string() == "host:7" && SRAddress("host:7").to_string(true) == "tcp://host:7");
    for (const char* wrong : {"", "host", ":1", "host:", "host:0", "host:65536", "host:1x", "host:18446744073709551616", "unix://"})
        THROWS(RuntimeException, SRAddress{wrong});
    // The check value of the catalogue of CRC algorithms.
    CHECK(sw::redis::crc16("123456789", 9) == 0x31c3 && sw::redis::crc16("", 0) == 0);
}

/// The members of Client that a derived class can read.
class Derived : public Client {
public:
    using Client::Client;
    bool has(const std::string& key, const std::string& field) { return _redis_server->hash_field_exists(key, field); }
    bool is_complete(const std::string& key) { return has(key, _DATASET_ACK_FIELD); }
};

void derived() {
    Derived first("derived");
    Derived client(std::move(first));
    const float value = 1;
    DataSet dataset("whole");
    dataset.add_meta_string("unit", "K");
    client.put_dataset(dataset);
    client.put_tensor("no dataset", &value, {1}, SRTensorTypeFloat, SRMemLayoutContiguous);
    const std::string key = "one.{whole}.meta";
    CHECK(client.is_complete(key) && client.has(key, "unit") && !client.has(key, "none"));
    CHECK(!client.is_complete("one.{none}.meta") && !client.is_complete("one.no dataset"));
    client.delete_dataset("whole");
    CHECK(!client.is_complete(key));
}

void logs(Client& client) {
    const LogContext context("context");
    log_data("by name", LLInfo, "data");
    log_warning(&context, LLInfo, "careful");
    log_error(&client, LLInfo, "failed");
    log_data(&context, LLDeveloper, "not written");
    log_warning("by name", LLInfo, "w");
    log_error("by name", LLInfo, "e");
    context.log_data(LLInfo, "own");
    const char* file = std::getenv("SR_LOG_FILE");
    CHECK(file != nullptr);
    std::ifstream stream(file);
    const std::string log(std::istreambuf_iterator<char>(stream), {});
    CHECK(log.find("by name@") != std::string::npos && log.find(":WARNING: careful\n") != std::string::npos);
    CHECK(log.find(":ERROR: failed\n") != std::string::npos && log.find("not written") == std::string::npos);
    setenv("SR_LOG_LEVEL", "loud", 1);
    THROWS(RuntimeException, Logger::get_instance().configure_logging());
    setenv("SR_LOG_LEVEL", "quiet", 1);
    Logger::get_instance().configure_logging();
}
} // namespace

int main() {
    Client first("first");
    Client moved(std::move(first));
    Client client(false, "every call");
    client = std::move(moved);
    CHECK(client.get_context() == "first" && !client.to_string().empty());
    std::cout << client;
    tensors(client);
    in_place(client);
    datasets(client);
    odd_bytes(client);
    moved_datasets(client);
    lists(client);
    models(client);
    prefixes(client);
    options();
    addresses();
    derived();
    logs(client);
    nodes(client);
    const Exception plain("plain");
    CHECK(plain.to_error_code() == SRInvalidError && Exception(plain).exception_class() == "Exception");
    CHECK(Exception(std::runtime_error("standard")).what() == std::string("standard"));
    std::cout << "every call of C++ worked\n";
}
