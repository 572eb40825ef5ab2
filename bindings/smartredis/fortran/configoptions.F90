! The options of a client.
module smartredis_configoptions
use iso_c_binding, only : c_ptr, c_null_ptr, c_bool, c_char, c_int64_t, c_size_t
use fortran_c_interop, only : enum_kind, trimmed, string_of
use smartredis_c_dataset
implicit none; private

#include "enum_fortran.inc"

public :: enum_kind

type, public :: configoptions_type
  type(c_ptr) :: configoptions_ptr = c_null_ptr
contains
  procedure :: get_c_pointer
  procedure :: create_configoptions_from_environment
  procedure :: get_integer_option
  procedure :: get_string_option
  procedure :: is_configured
  procedure :: override_integer_option
  procedure :: override_string_option
end type configoptions_type

contains

function get_c_pointer(self)
  class(configoptions_type), intent(in) :: self
  type(c_ptr) :: get_c_pointer
  get_c_pointer = self%configoptions_ptr
end function get_c_pointer

! Options that are read from the environment: with the suffix "big", SSDB is read from SSDB_big.
function create_configoptions_from_environment(self, db_suffix) result(code)
  class(configoptions_type), intent(inout) :: self
  character(len=*), intent(in) :: db_suffix
  integer(kind=enum_kind) :: code
  code = c_create_configoptions_from_environment(db_suffix, trimmed(db_suffix), self%configoptions_ptr)
end function create_configoptions_from_environment

function get_integer_option(self, option_name, result) result(code)
  class(configoptions_type), intent(in) :: self
  character(len=*), intent(in) :: option_name
  integer(kind=c_int64_t), intent(inout) :: result
  integer(kind=enum_kind) :: code
  code = c_get_integer_option(self%configoptions_ptr, option_name, trimmed(option_name), result)
end function get_integer_option

function get_string_option(self, option_name, result) result(code)
  class(configoptions_type), intent(in) :: self
  character(len=*), intent(in) :: option_name
  character(len=:), allocatable, intent(out) :: result
  integer(kind=enum_kind) :: code
  type(c_ptr) :: text
  integer(kind=c_size_t) :: length
  code = c_get_string_option(self%configoptions_ptr, option_name, trimmed(option_name), text, length)
  if (code == SRNoError) result = string_of(text, length)
end function get_string_option

function is_configured(self, option_name, result) result(code)
  class(configoptions_type), intent(in) :: self
  character(len=*), intent(in) :: option_name
  logical, intent(inout) :: result
  integer(kind=enum_kind) :: code
  logical(kind=c_bool) :: configured
  configured = .false.
  code = c_is_configured(self%configoptions_ptr, option_name, trimmed(option_name), configured)
  result = configured
end function is_configured

function override_integer_option(self, option_name, value) result(code)
  class(configoptions_type), intent(in) :: self
  character(len=*), intent(in) :: option_name
  integer(kind=c_int64_t), intent(in) :: value
  integer(kind=enum_kind) :: code
  code = c_override_integer_option(self%configoptions_ptr, option_name, trimmed(option_name), value)
end function override_integer_option

function override_string_option(self, option_name, value) result(code)
  class(configoptions_type), intent(in) :: self
  character(len=*), intent(in) :: option_name
  character(len=*), intent(in) :: value
  integer(kind=enum_kind) :: code
  code = c_override_string_option(self%configoptions_ptr, option_name, trimmed(option_name), value, trimmed(value))
end function override_string_option

end module smartredis_configoptions
