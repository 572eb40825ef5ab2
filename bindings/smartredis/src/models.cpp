// The client's calls on models, and on scripts, which it refuses.
#include "connection.h"
#include "json.h"
#include <cstring>

namespace SmartRedis {

namespace {
using Names = std::vector<std::string>;

std::string upper(std::string text) {
    for (char& c : text)
        c = char(std::toupper(static_cast<unsigned char>(c)));
    return text;
}

void required(const std::string& value, const char* name) {
    if (value.empty())
        throw SRParameterException(std::string(name) + " is empty");
}

void check_device(const std::string& device) {
    required(device, "device");
    if (device != "CPU" && device.find("GPU") == std::string::npos)
        throw SRRuntimeException("device is \"" + device + "\"; it must be CPU or begin with GPU");
}

void check_gpus(int first_gpu, int num_gpus) {
    if (first_gpu < 0)
        throw SRParameterException("first_gpu is " + std::to_string(first_gpu) + "; it must be at least 0");
    if (num_gpus < 1)
        throw SRParameterException("num_gpus is " + std::to_string(num_gpus) + "; it must be at least 1");
}

void check_batches(int size, int least, int timeout) {
    if (size == 0 && (least > 0 || timeout > 0))
        throw SRRuntimeException("min_batch_size and min_batch_timeout mean nothing with a batch_size of 0");
    if (timeout > 0 && least == 0)
        throw SRRuntimeException("min_batch_timeout means nothing with a min_batch_size of 0");
}

void check_model(const std::string& name, const std::string& backend, const Names& inputs, const Names& outputs) {
    required(name, "name");
    required(backend, "backend");
    if (backend != "TF" && !(inputs.empty() && outputs.empty()))
        throw SRParameterException("inputs and outputs are named for TF models only");
}

std::string read_file(const std::string& file, const char* what) {
    required(file, what);
    std::ifstream stream(file, std::ios::binary);
    if (!stream)
        throw SRRuntimeException("the file " + file + " cannot be read");
    try {
        return std::string(std::istreambuf_iterator<char>(stream), {});
    } catch (const std::ios_base::failure& error) { // of a folder, for example
        throw SRRuntimeException("the file " + file + " cannot be read: " + error.what());
    }
}

/// Refuses a call. The log gets the reason, too, because many C and Fortran programs stop without the error's text.
[[noreturn]] void refuse(const SRObject& client, const std::string& reason) {
    client.log_error(LLInfo, reason);
    throw SRRuntimeException(reason);
}

[[noreturn]] void refuse_script(const SRObject& client) {
    refuse(client, "tensorlend runs no scripts: export the function to ONNX, add it by set_model, and call run_model");
}

void put_model(const SRObject& client, const tensorlend_client* session, const std::string& key, const std::string_view& model,
               const std::string& backend, int batch_size, int min_batch_size, int min_batch_timeout, const std::string& tag) {
    if (upper(backend) != "ONNX")
        refuse(client, "tensorlend runs no " + backend + " models: export this model to ONNX, and set it with backend ONNX");
    const int size = std::max(batch_size, 1), least = std::min(min_batch_size, size);
    std::string options = "{\"v\":1,\"batch_max\":" + std::to_string(size);
    if (least > 0)
        options += ",\"batch_min\":" + std::to_string(least);
    options += ",\"batch_wait_ms\":" + std::to_string(std::max(min_batch_timeout, 0)) + ",\"tag\":";
    append_quoted(options, tag);
    options += '}';
    check(tensorlend_model_put(session, key.c_str(), model.data(), model.size(), options.c_str(), nullptr), "model \"" + key + "\"");
}

std::string bytes_name(const std::string& key) { return "model/" + key + "/.onnx"; }
} // namespace

void Client::set_model_from_file(const std::string& name, const std::string& model_file, const std::string& backend,
                                 const std::string& device, int batch_size, int min_batch_size, int min_batch_timeout,
                                 const std::string& tag, const Names& inputs, const Names& outputs) {
    set_model(name, read_file(model_file, "model_file"), backend, device, batch_size, min_batch_size, min_batch_timeout, tag, inputs,
              outputs);
}

void Client::set_model_from_file_multigpu(const std::string& name, const std::string& model_file, const std::string& backend,
                                          int first_gpu, int num_gpus, int batch_size, int min_batch_size, int min_batch_timeout,
                                          const std::string& tag, const Names& inputs, const Names& outputs) {
    set_model_multigpu(name, read_file(model_file, "model_file"), backend, first_gpu, num_gpus, batch_size, min_batch_size,
                       min_batch_timeout, tag, inputs, outputs);
}

void Client::set_model(const std::string& name, const std::string_view& model, const std::string& backend, const std::string& device,
                       int batch_size, int min_batch_size, int min_batch_timeout, const std::string& tag, const Names& inputs,
                       const Names& outputs) {
    check_model(name, backend, inputs, outputs);
    check_device(device);
    check_batches(batch_size, min_batch_size, min_batch_timeout);
    put_model(*this, impl_->get(), impl_->prefixes.model(name, false), model, backend, batch_size, min_batch_size, min_batch_timeout,
              tag);
}

void Client::set_model_multigpu(const std::string& name, const std::string_view& model, const std::string& backend, int first_gpu,
                                int num_gpus, int batch_size, int min_batch_size, int min_batch_timeout, const std::string& tag,
                                const Names& inputs, const Names& outputs) {
    check_model(name, backend, inputs, outputs);
    check_gpus(first_gpu, num_gpus);
    check_batches(batch_size, min_batch_size, min_batch_timeout);
    put_model(*this, impl_->get(), impl_->prefixes.model(name, false), model, backend, batch_size, min_batch_size, min_batch_timeout,
              tag);
}

std::string_view Client::get_model(const std::string& name) {
    const std::string key = impl_->prefixes.model(name, true), what = "model \"" + key + "\"";
    Lease lease;
    check(tensorlend_model_get(impl_->get(), key.c_str(), lease.place()), what);
    const tensorlend_tensor* tensor = tensorlend_lease_tensor(lease.get());
    char* copy = static_cast<char*>(impl_->allocate(size_t(tensor->nbytes)));
    check(tensorlend_lease_copy(lease.get(), nullptr, copy, tensor->nbytes), what);
    return {copy, size_t(tensor->nbytes)};
}

void Client::run_model(const std::string& name, const Names inputs, const Names outputs) {
    impl_->run_model(name, inputs, outputs);
}

void Client::run_model_multigpu(const std::string& name, const Names inputs, const Names outputs, int, int first_gpu, int num_gpus) {
    check_gpus(first_gpu, num_gpus);
    impl_->run_model(name, inputs, outputs);
}

void Client::delete_model(const std::string& name) {
    const std::string key = impl_->prefixes.model(name, true);
    check(tensorlend_model_delete(impl_->get(), key.c_str(), nullptr), "model \"" + key + "\"");
    impl_->forget_models(key);
}

void Client::delete_model_multigpu(const std::string& name, int first_gpu, int num_gpus) {
    check_gpus(first_gpu, num_gpus);
    delete_model(name);
}

bool Client::model_exists(const std::string& name) { return impl_->exists(bytes_name(impl_->prefixes.model(name, true))); }

bool Client::poll_model(const std::string& name, int poll_frequency_ms, int num_tries) {
    const std::string key = bytes_name(impl_->prefixes.model(name, true));
    return impl_->poll(key, poll_frequency_ms, num_tries, [&] { return impl_->exists(key); });
}

void Client::set_model_chunk_size(int) {}

void Client::set_script_from_file(const std::string&, const std::string& device, const std::string& script_file) {
    read_file(script_file, "script_file");
    check_device(device);
    refuse_script(*this);
}

void Client::set_script_from_file_multigpu(const std::string&, const std::string& script_file, int first_gpu, int num_gpus) {
    read_file(script_file, "script_file");
    check_gpus(first_gpu, num_gpus);
    refuse_script(*this);
}

void Client::set_script(const std::string&, const std::string& device, const std::string_view&) {
    check_device(device);
    refuse_script(*this);
}

void Client::set_script_multigpu(const std::string&, const std::string_view&, int first_gpu, int num_gpus) {
    check_gpus(first_gpu, num_gpus);
    refuse_script(*this);
}

std::string_view Client::get_script(const std::string&) { refuse_script(*this); }
void Client::run_script(const std::string&, const std::string&, const Names, const Names) { refuse_script(*this); }

void Client::run_script_multigpu(const std::string&, const std::string&, const Names, const Names, int, int first_gpu, int num_gpus) {
    check_gpus(first_gpu, num_gpus);
    refuse_script(*this);
}

void Client::delete_script(const std::string&) { refuse_script(*this); }

void Client::delete_script_multigpu(const std::string&, int first_gpu, int num_gpus) {
    check_gpus(first_gpu, num_gpus);
    refuse_script(*this);
}

} // namespace SmartRedis
