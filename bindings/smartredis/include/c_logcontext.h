/* A name for lines of the log, from C. */
#ifndef SMARTREDIS_C_LOGCONTEXT_H
#define SMARTREDIS_C_LOGCONTEXT_H
#include "logcontext.h"
#include "sr_enums.h"
#include "srexception.h"
#ifdef __cplusplus
extern "C" {
#endif

SRError SmartRedisCLogContext(const char* context, const size_t context_length, void** new_logcontext);
SRError DeallocateLogContext(void** logcontext);

#ifdef __cplusplus
}
#endif
#endif
