// Models and scripts from C.
#include "c_calls.h"
#include "c_client.h"

using namespace SmartRedis;

namespace {
/// Names that a call requires. ParameterException for a missing or empty one.
struct RequiredNames {
    const char** names;
    const size_t* lengths;
    size_t count;
    operator std::vector<std::string>() const {
        require(names, lengths);
        std::vector<std::string> copied;
        for (size_t at = 0; at < count; at++) {
            if (names[at] == nullptr || lengths[at] == 0)
                throw SRParameterException("name " + std::to_string(at) + " of inputs or outputs is NULL or empty");
            copied.emplace_back(names[at], lengths[at]);
        }
        return copied;
    }
};

/// Names of a model's graph: none, or one empty text in their place.
struct Names : RequiredNames {
    operator std::vector<std::string>() const {
        const bool none =
            names == nullptr || lengths == nullptr || count == 0 || (count == 1 && (names[0] == nullptr || lengths[0] == 0));
        return none ? std::vector<std::string>() : RequiredNames::operator std::vector<std::string>();
    }
};
} // namespace

extern "C" {

SRError set_model_from_file(void* c_client, const char* name, const size_t name_length, const char* model_file,
                            const size_t model_file_length, const char* backend, const size_t backend_length, const char* device,
                            const size_t device_length, const int batch_size, const int min_batch_size, const int min_batch_timeout,
                            const char* tag, const size_t tag_length, const char** inputs, const size_t* input_lengths,
                            const size_t n_inputs, const char** outputs, const size_t* output_lengths, const size_t n_outputs) {
    return called(c_client, &Client::set_model_from_file, Text{name, name_length}, Text{model_file, model_file_length},
                  Text{backend, backend_length}, Text{device, device_length}, batch_size, min_batch_size, min_batch_timeout,
                  OptionalText{tag, tag_length}, Names{{inputs, input_lengths, n_inputs}}, Names{{outputs, output_lengths, n_outputs}});
}

SRError set_model_from_file_multigpu(void* c_client, const char* name, const size_t name_length, const char* model_file,
                                     const size_t model_file_length, const char* backend, const size_t backend_length,
                                     const int first_gpu, const int num_gpus, const int batch_size, const int min_batch_size,
                                     const int min_batch_timeout, const char* tag, const size_t tag_length, const char** inputs,
                                     const size_t* input_lengths, const size_t n_inputs, const char** outputs,
                                     const size_t* output_lengths, const size_t n_outputs) {
    return called(c_client, &Client::set_model_from_file_multigpu, Text{name, name_length}, Text{model_file, model_file_length},
                  Text{backend, backend_length}, first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout,
                  OptionalText{tag, tag_length}, Names{{inputs, input_lengths, n_inputs}}, Names{{outputs, output_lengths, n_outputs}});
}

SRError set_model(void* c_client, const char* name, const size_t name_length, const char* model, const size_t model_length,
                  const char* backend, const size_t backend_length, const char* device, const size_t device_length,
                  const int batch_size, const int min_batch_size, const int min_batch_timeout, const char* tag,
                  const size_t tag_length, const char** inputs, const size_t* input_lengths, const size_t n_inputs,
                  const char** outputs, const size_t* output_lengths, const size_t n_outputs) {
    return called(c_client, &Client::set_model, Text{name, name_length}, Text{model, model_length}, Text{backend, backend_length},
                  Text{device, device_length}, batch_size, min_batch_size, min_batch_timeout, OptionalText{tag, tag_length},
                  Names{{inputs, input_lengths, n_inputs}}, Names{{outputs, output_lengths, n_outputs}});
}

SRError set_model_multigpu(void* c_client, const char* name, const size_t name_length, const char* model, const size_t model_length,
                           const char* backend, const size_t backend_length, const int first_gpu, const int num_gpus,
                           const int batch_size, const int min_batch_size, const int min_batch_timeout, const char* tag,
                           const size_t tag_length, const char** inputs, const size_t* input_lengths, const size_t n_inputs,
                           const char** outputs, const size_t* output_lengths, const size_t n_outputs) {
    return called(c_client, &Client::set_model_multigpu, Text{name, name_length}, Text{model, model_length},
                  Text{backend, backend_length}, first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout,
                  OptionalText{tag, tag_length}, Names{{inputs, input_lengths, n_inputs}}, Names{{outputs, output_lengths, n_outputs}});
}

SRError get_model(void* c_client, const char* name, const size_t name_length, size_t* model_length, const char** model) {
    return guarded([&] {
        require(model_length, model);
        const std::string_view found = client_at(c_client).get_model(text(name, name_length));
        *model = found.data();
        *model_length = found.size();
    });
}

SRError run_model(void* c_client, const char* name, const size_t name_length, const char** inputs, const size_t* input_lengths,
                  const size_t n_inputs, const char** outputs, const size_t* output_lengths, const size_t n_outputs) {
    return called(c_client, &Client::run_model, Text{name, name_length}, RequiredNames{inputs, input_lengths, n_inputs},
                  RequiredNames{outputs, output_lengths, n_outputs});
}

SRError run_model_multigpu(void* c_client, const char* name, const size_t name_length, const char** inputs,
                           const size_t* input_lengths, const size_t n_inputs, const char** outputs, const size_t* output_lengths,
                           const size_t n_outputs, const int offset, const int first_gpu, const int num_gpus) {
    return called(c_client, &Client::run_model_multigpu, Text{name, name_length}, RequiredNames{inputs, input_lengths, n_inputs},
                  RequiredNames{outputs, output_lengths, n_outputs}, offset, first_gpu, num_gpus);
}

SRError delete_model_multigpu(void* c_client, const char* name, const size_t name_length, const int first_gpu, const int num_gpus) {
    return called(c_client, &Client::delete_model_multigpu, Text{name, name_length}, first_gpu, num_gpus);
}

SRError set_script_from_file(void* c_client, const char* name, const size_t name_length, const char* device,
                             const size_t device_length, const char* script_file, const size_t script_file_length) {
    return called(c_client, &Client::set_script_from_file, Text{name, name_length}, Text{device, device_length},
                  Text{script_file, script_file_length});
}

SRError set_script_from_file_multigpu(void* c_client, const char* name, const size_t name_length, const char* script_file,
                                      const size_t script_file_length, const int first_gpu, const int num_gpus) {
    return called(c_client, &Client::set_script_from_file_multigpu, Text{name, name_length}, Text{script_file, script_file_length},
                  first_gpu, num_gpus);
}

SRError set_script(void* c_client, const char* name, const size_t name_length, const char* device, const size_t device_length,
                   const char* script, const size_t script_length) {
    return called(c_client, &Client::set_script, Text{name, name_length}, Text{device, device_length}, Text{script, script_length});
}

SRError set_script_multigpu(void* c_client, const char* name, const size_t name_length, const char* script,
                            const size_t script_length, const int first_gpu, const int num_gpus) {
    return called(c_client, &Client::set_script_multigpu, Text{name, name_length}, Text{script, script_length}, first_gpu,
                  num_gpus);
}

SRError get_script(void* c_client, const char* name, const size_t name_length, const char** script, size_t* script_length) {
    return guarded([&] {
        require(script, script_length);
        *script = nullptr;
        *script_length = 0;
        client_at(c_client).get_script(text(name, name_length));
    });
}

SRError run_script(void* c_client, const char* name, const size_t name_length, const char* function, const size_t function_length,
                   const char** inputs, const size_t* input_lengths, const size_t n_inputs, const char** outputs,
                   const size_t* output_lengths, const size_t n_outputs) {
    return called(c_client, &Client::run_script, Text{name, name_length}, Text{function, function_length},
                  RequiredNames{inputs, input_lengths, n_inputs}, RequiredNames{outputs, output_lengths, n_outputs});
}

SRError run_script_multigpu(void* c_client, const char* name, const size_t name_length, const char* function,
                            const size_t function_length, const char** inputs, const size_t* input_lengths, const size_t n_inputs,
                            const char** outputs, const size_t* output_lengths, const size_t n_outputs, const int offset,
                            const int first_gpu, const int num_gpus) {
    return called(c_client, &Client::run_script_multigpu, Text{name, name_length}, Text{function, function_length},
                  RequiredNames{inputs, input_lengths, n_inputs}, RequiredNames{outputs, output_lengths, n_outputs}, offset,
                  first_gpu, num_gpus);
}

SRError delete_script_multigpu(void* c_client, const char* name, const size_t name_length, const int first_gpu, const int num_gpus) {
    return called(c_client, &Client::delete_script_multigpu, Text{name, name_length}, first_gpu, num_gpus);
}

} // extern "C"
