/* Datasets from C. Memory that a call returns by a pointer belongs to the dataset. */
#ifndef SMARTREDIS_C_DATASET_H
#define SMARTREDIS_C_DATASET_H
#include "dataset.h"
#include "sr_enums.h"
#include "srexception.h"
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

SRError CDataSet(const char* name, const size_t name_length, void** new_dataset);
SRError DeallocateDataSet(void** dataset);
SRError add_tensor(void* dataset, const char* name, const size_t name_length, void* data, const size_t* dims, const size_t n_dims,
                   const SRTensorType type, const SRMemoryLayout mem_layout);
SRError add_meta_scalar(void* dataset, const char* name, const size_t name_length, const void* data, const SRMetaDataType type);
SRError add_meta_string(void* dataset, const char* name, const size_t name_length, const char* data, const size_t data_length);
SRError get_dataset_tensor(void* dataset, const char* name, const size_t name_length, void** data, size_t** dims, size_t* n_dims,
                           SRTensorType* type, const SRMemoryLayout mem_layout);
SRError unpack_dataset_tensor(void* dataset, const char* name, const size_t name_length, void* data, const size_t* dims,
                              const size_t n_dims, const SRTensorType type, const SRMemoryLayout mem_layout);
SRError get_meta_scalars(void* dataset, const char* name, const size_t name_length, size_t* length, SRMetaDataType* type,
                         void** scalar_data);
SRError get_meta_strings(void* dataset, const char* name, const size_t name_length, char*** data, size_t* n_strings,
                         size_t** lengths);
SRError get_tensor_names(void* dataset, char*** data, size_t* n_strings, size_t** lengths);
SRError get_tensor_type(void* dataset, const char* name, size_t name_len, SRTensorType* ttype);
/* *dims is memory of the caller for *ndims sizes. SRBadAllocError, and the number in *ndims, if there are more. */
SRError get_tensor_dims(void* dataset, const char* name, size_t name_len, size_t** dims, size_t* ndims);
SRError get_metadata_field_names(void* dataset, char*** data, size_t* n_strings, size_t** lengths);
SRError get_metadata_field_type(void* dataset, const char* name, size_t name_len, SRMetaDataType* mdtype);
/* The text is valid until this thread's next call of it. */
const char* dataset_to_string(void* dataset);

#ifdef __cplusplus
}
#endif
#endif
