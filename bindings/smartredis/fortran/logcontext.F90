! A name for lines of the log.
module smartredis_logcontext
use iso_c_binding, only : c_ptr, c_null_ptr, c_char, c_size_t
use fortran_c_interop, only : enum_kind, trimmed
implicit none; private

public :: enum_kind

type, public :: logcontext_type
  type(c_ptr) :: logcontext_ptr = c_null_ptr
contains
  procedure :: initialize => initialize_logcontext
  procedure :: get_c_pointer
end type logcontext_type

interface
  integer(enum_kind) function c_create(context, context_length, new_logcontext) bind(c, name="SmartRedisCLogContext")
    import
    character(kind=c_char), dimension(*) :: context
    integer(c_size_t), value :: context_length
    type(c_ptr) :: new_logcontext
  end function c_create
end interface

contains

function initialize_logcontext(self, context) result(code)
  class(logcontext_type), intent(inout) :: self
  character(len=*), intent(in) :: context
  integer(kind=enum_kind) :: code
  code = c_create(context, trimmed(context), self%logcontext_ptr)
end function initialize_logcontext

function get_c_pointer(self)
  class(logcontext_type), intent(in) :: self
  type(c_ptr) :: get_c_pointer
  get_c_pointer = self%logcontext_ptr
end function get_c_pointer

end module smartredis_logcontext
