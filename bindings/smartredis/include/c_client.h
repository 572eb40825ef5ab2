/* The client from C. Each call returns SRNoError, or the code of an error whose text SRGetLastError returns. Texts have a
 * length, and need no zero byte at their end. */
#ifndef SMARTREDIS_C_CLIENT_H
#define SMARTREDIS_C_CLIENT_H
#include "client.h"
#include "sr_enums.h"
#include "srexception.h"
#include <stdbool.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

SRError SimpleCreateClient(const char* logger_name, const size_t logger_name_length, void** new_client);
SRError CreateClient(void* config_options, const char* logger_name, const size_t logger_name_length, void** new_client);
SRError SmartRedisCClient(bool cluster, const char* logger_name, const size_t logger_name_length, void** new_client);
SRError DeleteCClient(void** c_client);

SRError put_dataset(void* c_client, void* dataset);
/* DeallocateDataSet frees the dataset. */
SRError get_dataset(void* c_client, const char* name, const size_t name_length, void** dataset);
SRError rename_dataset(void* c_client, const char* old_name, const size_t old_name_length, const char* new_name,
                       const size_t new_name_length);
SRError copy_dataset(void* c_client, const char* src_name, const size_t src_name_length, const char* dest_name,
                     const size_t dest_name_length);
SRError delete_dataset(void* c_client, const char* name, const size_t name_length);

SRError put_tensor(void* c_client, const char* name, const size_t name_length, void* data, const size_t* dims, const size_t n_dims,
                   SRTensorType type, SRMemoryLayout mem_layout);
/* The copy belongs to the client. */
SRError get_tensor(void* c_client, const char* name, const size_t name_length, void** data, size_t** dims, size_t* n_dims,
                   SRTensorType* type, SRMemoryLayout mem_layout);
SRError unpack_tensor(void* c_client, const char* name, const size_t name_length, void* result, const size_t* dims,
                      const size_t n_dims, SRTensorType type, SRMemoryLayout mem_layout);
SRError rename_tensor(void* c_client, const char* old_name, const size_t old_name_length, const char* new_name,
                      const size_t new_name_length);
SRError delete_tensor(void* c_client, const char* name, const size_t name_length);
SRError copy_tensor(void* c_client, const char* src_name, const size_t src_name_length, const char* dest_name,
                    const size_t dest_name_length);

SRError set_model_from_file(void* c_client, const char* name, const size_t name_length, const char* model_file,
                            const size_t model_file_length, const char* backend, const size_t backend_length, const char* device,
                            const size_t device_length, const int batch_size, const int min_batch_size, const int min_batch_timeout,
                            const char* tag, const size_t tag_length, const char** inputs, const size_t* input_lengths,
                            const size_t n_inputs, const char** outputs, const size_t* output_lengths, const size_t n_outputs);
SRError set_model_from_file_multigpu(void* c_client, const char* name, const size_t name_length, const char* model_file,
                                     const size_t model_file_length, const char* backend, const size_t backend_length,
                                     const int first_gpu, const int num_gpus, const int batch_size, const int min_batch_size,
                                     const int min_batch_timeout, const char* tag, const size_t tag_length, const char** inputs,
                                     const size_t* input_lengths, const size_t n_inputs, const char** outputs,
                                     const size_t* output_lengths, const size_t n_outputs);
SRError set_model(void* c_client, const char* name, const size_t name_length, const char* model, const size_t model_length,
                  const char* backend, const size_t backend_length, const char* device, const size_t device_length,
                  const int batch_size, const int min_batch_size, const int min_batch_timeout, const char* tag,
                  const size_t tag_length, const char** inputs, const size_t* input_lengths, const size_t n_inputs,
                  const char** outputs, const size_t* output_lengths, const size_t n_outputs);
SRError set_model_multigpu(void* c_client, const char* name, const size_t name_length, const char* model, const size_t model_length,
                           const char* backend, const size_t backend_length, const int first_gpu, const int num_gpus,
                           const int batch_size, const int min_batch_size, const int min_batch_timeout, const char* tag,
                           const size_t tag_length, const char** inputs, const size_t* input_lengths, const size_t n_inputs,
                           const char** outputs, const size_t* output_lengths, const size_t n_outputs);
SRError get_model(void* c_client, const char* name, const size_t name_length, size_t* model_length, const char** model);
SRError run_model(void* c_client, const char* name, const size_t name_length, const char** inputs, const size_t* input_lengths,
                  const size_t n_inputs, const char** outputs, const size_t* output_lengths, const size_t n_outputs);
SRError run_model_multigpu(void* c_client, const char* name, const size_t name_length, const char** inputs,
                           const size_t* input_lengths, const size_t n_inputs, const char** outputs, const size_t* output_lengths,
                           const size_t n_outputs, const int offset, const int first_gpu, const int num_gpus);
SRError delete_model(void* c_client, const char* name, const size_t name_length);
SRError delete_model_multigpu(void* c_client, const char* name, const size_t name_length, const int first_gpu, const int num_gpus);

/* Scripts are refused with SRRuntimeError: export the function to ONNX and call set_model. */
SRError set_script_from_file(void* c_client, const char* name, const size_t name_length, const char* device,
                             const size_t device_length, const char* script_file, const size_t script_file_length);
SRError set_script_from_file_multigpu(void* c_client, const char* name, const size_t name_length, const char* script_file,
                                      const size_t script_file_length, const int first_gpu, const int num_gpus);
SRError set_script(void* c_client, const char* name, const size_t name_length, const char* device, const size_t device_length,
                   const char* script, const size_t script_length);
SRError set_script_multigpu(void* c_client, const char* name, const size_t name_length, const char* script,
                            const size_t script_length, const int first_gpu, const int num_gpus);
SRError get_script(void* c_client, const char* name, const size_t name_length, const char** script, size_t* script_length);
SRError run_script(void* c_client, const char* name, const size_t name_length, const char* function, const size_t function_length,
                   const char** inputs, const size_t* input_lengths, const size_t n_inputs, const char** outputs,
                   const size_t* output_lengths, const size_t n_outputs);
SRError run_script_multigpu(void* c_client, const char* name, const size_t name_length, const char* function,
                            const size_t function_length, const char** inputs, const size_t* input_lengths, const size_t n_inputs,
                            const char** outputs, const size_t* output_lengths, const size_t n_outputs, const int offset,
                            const int first_gpu, const int num_gpus);
SRError delete_script(void* c_client, const char* name, const size_t name_length);
SRError delete_script_multigpu(void* c_client, const char* name, const size_t name_length, const int first_gpu, const int num_gpus);

SRError key_exists(void* c_client, const char* key, const size_t key_length, bool* exists);
SRError tensor_exists(void* c_client, const char* name, const size_t name_length, bool* exists);
SRError model_exists(void* c_client, const char* name, const size_t name_length, bool* exists);
SRError dataset_exists(void* c_client, const char* name, const size_t name_length, bool* exists);
SRError poll_key(void* c_client, const char* key, const size_t key_length, const int poll_frequency_ms, const int num_tries,
                 bool* exists);
SRError poll_model(void* c_client, const char* name, const size_t name_length, const int poll_frequency_ms, const int num_tries,
                   bool* exists);
SRError poll_tensor(void* c_client, const char* name, const size_t name_length, const int poll_frequency_ms, const int num_tries,
                    bool* exists);
SRError poll_dataset(void* c_client, const char* name, const size_t name_length, const int poll_frequency_ms, const int num_tries,
                     bool* exists);

SRError set_data_source(void* c_client, const char* source_id, const size_t source_id_length);
SRError use_tensor_ensemble_prefix(void* c_client, bool use_prefix);
SRError use_dataset_ensemble_prefix(void* c_client, bool use_prefix);
SRError use_model_ensemble_prefix(void* c_client, bool use_prefix);
SRError use_list_ensemble_prefix(void* c_client, bool use_prefix);

SRError append_to_list(void* c_client, const char* list_name, const size_t list_name_length, const void* dataset);
SRError delete_list(void* c_client, const char* list_name, const size_t list_name_length);
SRError copy_list(void* c_client, const char* src_name, const size_t src_name_length, const char* dest_name,
                  const size_t dest_name_length);
SRError rename_list(void* c_client, const char* src_name, const size_t src_name_length, const char* dest_name,
                    const size_t dest_name_length);
SRError get_list_length(void* c_client, const char* list_name, const size_t list_name_length, int* result_length);
SRError poll_list_length(void* c_client, const char* name, const size_t name_length, int list_length, int poll_frequency_ms,
                         int num_tries, bool* poll_result);
SRError poll_list_length_gte(void* c_client, const char* name, const size_t name_length, int list_length, int poll_frequency_ms,
                             int num_tries, bool* poll_result);
SRError poll_list_length_lte(void* c_client, const char* name, const size_t name_length, int list_length, int poll_frequency_ms,
                             int num_tries, bool* poll_result);
/* free() frees the array, DeallocateDataSet each dataset. The array is NULL for an empty list. */
SRError get_datasets_from_list(void* c_client, const char* list_name, const size_t list_name_length, void*** datasets,
                               size_t* num_datasets);
SRError get_dataset_list_range(void* c_client, const char* list_name, const size_t list_name_length, const int start_index,
                               const int end_index, void*** datasets, size_t* num_datasets);
/* As get_dataset_list_range, into an array of the caller. SRInternalError if the list has fewer datasets than the range. */
SRError _get_dataset_list_range_allocated(void* c_client, const char* list_name, const size_t list_name_length,
                                          const int start_index, const int end_index, void** datasets);
/* For the Fortran modules: SRRuntimeError, because an array has fewer elements than the dimensions that were given. */
SRError refuse_small_array(const char* name, const size_t name_length);
/* The text is valid until this thread's next call of it. */
const char* client_to_string(void* c_client);

/* Not in SmartRedis: a tensor in shared memory, to write at *data. put_draft publishes it without a copy, and ends it. */
SRError draft_tensor(void* c_client, const size_t* dims, const size_t n_dims, SRTensorType type, SRMemoryLayout mem_layout,
                     void** draft, void** data);
SRError put_draft(void* c_client, const char* name, const size_t name_length, void** draft);
SRError DeallocateDraft(void** draft);
/* Not in SmartRedis: the present tensor of a name, to read at *data until DeallocateLease. *mem_layout is contiguous or
 * Fortran contiguous. */
SRError lease_tensor(void* c_client, const char* name, const size_t name_length, void** lease, const void** data,
                     const size_t** dims, size_t* n_dims, SRTensorType* type, SRMemoryLayout* mem_layout);
SRError DeallocateLease(void** lease);

#ifdef __cplusplus
}
#endif
#endif
