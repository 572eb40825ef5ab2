/* The options of a client, from C. */
#ifndef SMARTREDIS_C_CONFIGOPTIONS_H
#define SMARTREDIS_C_CONFIGOPTIONS_H
#include "sr_enums.h"
#include "srexception.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

SRError create_configoptions_from_environment(const char* db_suffix, const size_t db_suffix_length, void** new_configoptions);
SRError get_integer_option(void* c_cfgopts, const char* option_name, size_t option_name_len, int64_t* result);
/* The result belongs to the options, and ends with a zero byte. */
SRError get_string_option(void* c_cfgopts, const char* option_name, size_t option_name_len, char** result, size_t* result_len);
SRError is_configured(void* c_cfgopts, const char* option_name, size_t option_name_len, bool* cfg_result);
SRError override_integer_option(void* c_cfgopts, const char* option_name, size_t option_name_len, int64_t value);
SRError override_string_option(void* c_cfgopts, const char* option_name, size_t option_name_len, const char* value,
                               size_t value_len);
/* Not in SmartRedis, where options are never freed. */
SRError DeallocateConfigOptions(void** c_cfgopts);

#ifdef __cplusplus
}
#endif
#endif
