/* The enumerations of the SmartRedis interface, for C and C++. The numbers are those of SmartRedis 0.6.1. */
#ifndef SMARTREDIS_SR_ENUMS_H
#define SMARTREDIS_SR_ENUMS_H

/* C and Fortran programs can pass any int, which C++ allows only in an enumeration with an underlying type. */
#ifdef __cplusplus
#define SMARTREDIS_ENUM enum : int
#else
#define SMARTREDIS_ENUM enum
#endif

/* The order of a tensor's elements in the caller's memory. Calls refuse SRMemLayoutFortranNested, as SmartRedis does. */
typedef SMARTREDIS_ENUM {
    SRMemLayoutInvalid = 0,
    SRMemLayoutNested = 1,           /* row-major, arrays of pointers to arrays */
    SRMemLayoutContiguous = 2,       /* row-major, one block */
    SRMemLayoutFortranNested = 3,    /* column-major, arrays of pointers to arrays */
    SRMemLayoutFortranContiguous = 4 /* column-major, one block */
} SRMemoryLayout;

/* The type of a dataset's metadata field. */
typedef SMARTREDIS_ENUM {
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
typedef SMARTREDIS_ENUM {
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
typedef SMARTREDIS_ENUM { LLInvalid = 0, LLQuiet = 1, LLInfo = 2, LLDebug = 3, LLDeveloper = 4 } SRLoggingLevel;

#endif
