! The text of the last error of this thread.
module smartredis_errors
use iso_c_binding, only : c_ptr, c_char
use, intrinsic :: iso_fortran_env, only : error_unit
use fortran_c_interop, only : string_of
implicit none; private

public :: get_last_error, print_last_error

interface
  function c_last_error() bind(c, name="SRGetLastError") result(text)
    import
    type(c_ptr) :: text
  end function c_last_error
  function c_last_error_location() bind(c, name="SRGetLastErrorLocation") result(text)
    import
    type(c_ptr) :: text
  end function c_last_error_location
end interface

contains

! Returns the error's text and, on a second line, the place in the source that raised it.
function get_last_error() result(text)
  character(kind=c_char, len=:), allocatable :: text
  text = string_of(c_last_error()) // new_line('a') // string_of(c_last_error_location())
end function get_last_error

! Writes the error's text to a unit: standard error by default.
subroutine print_last_error(unit)
  integer, optional, intent(in) :: unit
  integer :: target_unit
  target_unit = error_unit
  if (present(unit)) target_unit = unit
  write(target_unit, *) get_last_error()
end subroutine print_last_error

end module smartredis_errors
