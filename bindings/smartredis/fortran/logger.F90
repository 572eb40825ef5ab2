! Lines of the log.
module smartredis_logger
use iso_c_binding, only : c_ptr, c_char, c_size_t
use fortran_c_interop, only : enum_kind, trimmed
use smartredis_client, only : client_type
use smartredis_dataset, only : dataset_type
use smartredis_logcontext, only : logcontext_type
implicit none; private

public :: enum_kind
public :: log_data, log_warning, log_error

interface log_data
  module procedure log_data_client, log_data_dataset, log_data_logcontext, log_data_string
end interface log_data

interface log_warning
  module procedure log_warning_client, log_warning_dataset, log_warning_logcontext, log_warning_string
end interface log_warning

interface log_error
  module procedure log_error_client, log_error_dataset, log_error_logcontext, log_error_string
end interface log_error

interface
  subroutine c_log_data(context, level, data, data_len) bind(c, name="log_data_noexcept")
    import
    type(c_ptr), value :: context
    integer(enum_kind), value :: level
    character(kind=c_char), dimension(*) :: data
    integer(c_size_t), value :: data_len
  end subroutine c_log_data
  subroutine c_log_data_string(context, context_len, level, data, data_len) bind(c, name="log_data_noexcept_string")
    import
    character(kind=c_char), dimension(*) :: context
    integer(c_size_t), value :: context_len
    integer(enum_kind), value :: level
    character(kind=c_char), dimension(*) :: data
    integer(c_size_t), value :: data_len
  end subroutine c_log_data_string
  subroutine c_log_warning(context, level, data, data_len) bind(c, name="log_warning_noexcept")
    import
    type(c_ptr), value :: context
    integer(enum_kind), value :: level
    character(kind=c_char), dimension(*) :: data
    integer(c_size_t), value :: data_len
  end subroutine c_log_warning
  subroutine c_log_warning_string(context, context_len, level, data, data_len) bind(c, name="log_warning_noexcept_string")
    import
    character(kind=c_char), dimension(*) :: context
    integer(c_size_t), value :: context_len
    integer(enum_kind), value :: level
    character(kind=c_char), dimension(*) :: data
    integer(c_size_t), value :: data_len
  end subroutine c_log_warning_string
  subroutine c_log_error(context, level, data, data_len) bind(c, name="log_error_noexcept")
    import
    type(c_ptr), value :: context
    integer(enum_kind), value :: level
    character(kind=c_char), dimension(*) :: data
    integer(c_size_t), value :: data_len
  end subroutine c_log_error
  subroutine c_log_error_string(context, context_len, level, data, data_len) bind(c, name="log_error_noexcept_string")
    import
    character(kind=c_char), dimension(*) :: context
    integer(c_size_t), value :: context_len
    integer(enum_kind), value :: level
    character(kind=c_char), dimension(*) :: data
    integer(c_size_t), value :: data_len
  end subroutine c_log_error_string
end interface

contains

#define LOG_CLIENT log_data_client
#define LOG_DATASET log_data_dataset
#define LOG_CONTEXT log_data_logcontext
#define LOG_STRING log_data_string
#define C_LOG c_log_data
#define C_LOG_STRING c_log_data_string
#include "logger_calls.inc"

#define LOG_CLIENT log_warning_client
#define LOG_DATASET log_warning_dataset
#define LOG_CONTEXT log_warning_logcontext
#define LOG_STRING log_warning_string
#define C_LOG c_log_warning
#define C_LOG_STRING c_log_warning_string
#include "logger_calls.inc"

#define LOG_CLIENT log_error_client
#define LOG_DATASET log_error_dataset
#define LOG_CONTEXT log_error_logcontext
#define LOG_STRING log_error_string
#define C_LOG c_log_error
#define C_LOG_STRING c_log_error_string
#include "logger_calls.inc"

end module smartredis_logger
