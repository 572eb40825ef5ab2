! Solves the heat equation on a square plate, and hands the field to a trainer without a copy.
!
! The solver writes each state into a draft, a tensor in shared memory that has the order of Fortran, and publishes it under
! the name "field STATE": the heat, and its change in the last step. trainer.py reads the tensors in place, while the solver computes the next steps.
program solver
use iso_c_binding, only : c_double, c_f_pointer
use smartredis_client, only : client_type, draft_type
use smartredis_errors, only : print_last_error
implicit none
#include "enum_fortran.inc"

integer, parameter :: cells = 256, states = 10, steps = 100
real(c_double), parameter :: diffusivity = 0.2d0
real(c_double) :: heat(cells, cells), change(cells, cells)
real(c_double), pointer :: field(:, :, :)
type(client_type) :: client
type(draft_type) :: draft
character(len=16) :: name
integer :: state, step

call check(client%initialize("solver"))
heat = 0
heat(60:100, 40:200) = 1
heat(160:180, 100:220) = 2
change = 0
do state = 1, states
  do step = 1, steps
    change(2:cells-1, 2:cells-1) = diffusivity * (heat(1:cells-2, 2:cells-1) + heat(3:cells, 2:cells-1) &
      + heat(2:cells-1, 1:cells-2) + heat(2:cells-1, 3:cells) - 4 * heat(2:cells-1, 2:cells-1))
    heat = heat + change
  end do
  call check(client%draft_tensor([cells, cells, 2], tensor_dbl, draft))
  call c_f_pointer(draft%data, field, [cells, cells, 2])
  field(:, :, 1) = heat
  field(:, :, 2) = change
  write(name, '("field ", i0)') state
  call check(client%put_draft(trim(name), draft))
end do
call check(client%destructor())
print '(a, i0, a)', "published ", states, " states"

contains

subroutine check(code)
  integer(kind(SRNoError)), intent(in) :: code
  if (code == SRNoError) return
  call print_last_error()
  error stop 1
end subroutine check

end program solver
