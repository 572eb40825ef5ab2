/* The enumerations of the SmartRedis interface, for C and C++. The numbers are those of SmartRedis 0.6.1. */
#ifndef SMARTREDIS_SR_ENUMS_H
#define SMARTREDIS_SR_ENUMS_H

/* The order of a tensor's elements in the caller's memory. Calls refuse SRMemLayoutFortranNested, as SmartRedis does. */
typedef enum {
    SRMemLayoutInvalid = 0,
    SRMemLayoutNested = 1,           /* row-major, arrays of pointers to arrays */
    SRMemLayoutContiguous = 2,       /* row-major, one block */
    SRMemLayoutFortranNested = 3,    /* column-major, arrays of pointers to arrays */
    SRMemLayoutFortranContiguous = 4 /* column-major, one block */
} SRMemoryLayout;

/* The type of a dataset's metadata field. */
typedef enum {
    SRMetadataTypeInvalid = 0,
    SRMetadataTypeDouble = 1,
    SRMetadataTypeFloat = 2,
    SRMetadataTypeInt32 = 3,
    SRMetadataTypeInt64 = 4,
    SRMetadataTypeUint32 = 5,
    SRMetadataTypeUint64 = 6,
    SRMetadataTypeString = 7
} SRMetaDataType;

/* The type of a tensor's elements. */
typedef enum {
    SRTensorTypeInvalid = 0,
    SRTensorTypeDouble = 1,
    SRTensorTypeFloat = 2,
    SRTensorTypeInt8 = 3,
    SRTensorTypeInt16 = 4,
    SRTensorTypeInt32 = 5,
    SRTensorTypeInt64 = 6,
    SRTensorTypeUint8 = 7,
    SRTensorTypeUint16 = 8
} SRTensorType;

/* Log levels. Each level includes the levels before it. */
typedef enum { LLInvalid = 0, LLQuiet = 1, LLInfo = 2, LLDebug = 3, LLDeveloper = 4 } SRLoggingLevel;

#endif
