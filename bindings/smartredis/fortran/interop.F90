! Shared parts of the modules: the kind of C's enumerations, and conversion of text from and to C.
module fortran_c_interop
use iso_c_binding, only : c_ptr, c_char, c_int, c_size_t, c_loc, c_null_ptr, c_associated, c_f_pointer
implicit none; private

! The kind of C's enumerations, and of error codes.
integer, parameter, public :: enum_kind = c_int

! An array of texts as C takes it: one pointer and one length for each text, without trailing blanks.
type, public :: c_names
  integer(c_size_t) :: count = 0
  type(c_ptr), allocatable :: texts(:)
  integer(c_size_t), allocatable :: lengths(:)
  character(kind=c_char), private, pointer :: bytes(:) => null()
contains
  final :: free_names
end type c_names

public :: set_names, trimmed, string_of, holds, c_refuse_small_array

interface
  function c_strlen(text) bind(c, name="strlen") result(length)
    import
    type(c_ptr), value :: text
    integer(c_size_t) :: length
  end function c_strlen

  integer(enum_kind) function c_refuse_small_array(name, name_length) bind(c, name="refuse_small_array")
    import
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
  end function c_refuse_small_array
end interface

contains

! Returns a text's length without trailing blanks.
pure function trimmed(text) result(length)
  character(len=*), intent(in) :: text
  integer(c_size_t) :: length
  length = len_trim(text, kind=c_size_t)
end function trimmed

! Returns false if an array with this number of elements is too small for `dims`. The size is unknown for an element, which
! may be the first of many, and negative for an assumed-size array. C refuses dims that are not positive.
pure function holds(elements, array_rank, dims) result(enough)
  integer(c_size_t), intent(in) :: elements
  integer, intent(in) :: array_rank, dims(:)
  logical :: enough
  integer(c_size_t) :: room
  integer :: i
  enough = .true.
  if (array_rank == 0 .or. elements < 0 .or. any(dims <= 0)) return
  room = elements
  do i = 1, size(dims)
    room = room / dims(i)
  end do
  enough = room > 0
end function holds

! Copies the texts to memory that C can read until `names` ends.
subroutine set_names(names, texts)
  type(c_names), intent(inout) :: names
  character(len=*), intent(in) :: texts(:)
  integer(c_size_t) :: i, j, used
  names%count = size(texts, kind=c_size_t)
  allocate(names%texts(names%count), names%lengths(names%count))
  allocate(names%bytes(max(1_c_size_t, sum(len_trim(texts, kind=c_size_t)))))
  used = 0
  do i = 1, names%count
    names%lengths(i) = trimmed(texts(i))
    names%texts(i) = c_null_ptr
    if (names%lengths(i) > 0) names%texts(i) = c_loc(names%bytes(used + 1))
    do j = 1, names%lengths(i)
      names%bytes(used + j) = texts(i)(j:j)
    end do
    used = used + names%lengths(i)
  end do
end subroutine set_names

subroutine free_names(names)
  type(c_names), intent(inout) :: names
  if (associated(names%bytes)) deallocate(names%bytes)
end subroutine free_names

! Returns a copy of a text of C that ends with a zero byte, or that has this length.
function string_of(text, length) result(copy)
  type(c_ptr), intent(in) :: text
  integer(c_size_t), intent(in), optional :: length
  character(kind=c_char, len=:), allocatable :: copy
  character(kind=c_char), pointer :: bytes(:)
  integer(c_size_t) :: i, n
  n = 0
  if (c_associated(text)) then
    if (present(length)) then
      n = length
    else
      n = c_strlen(text)
    end if
  end if
  allocate(character(kind=c_char, len=n) :: copy)
  if (n == 0) return
  call c_f_pointer(text, bytes, [n])
  do i = 1, n
    copy(i:i) = bytes(i)
  end do
end function string_of

end module fortran_c_interop
