//! The share rule: the maximum part of a common stock that one user may take, so that the next user
//! still gets some.
//!
//! Let `n` users hold some of the stock, including this user. Of the part that the other users have
//! left, this user may hold the fraction `1 / (n + 1)`. So the first user may hold a half. The
//! second user may then hold a third of the other half, and the third user a quarter of the rest.
//! The `n`th user finds at least `1 / (n * (n + 1))` of the whole, whatever the earlier users took.
//! The scheme is that of dbus-broker (src/util/user.c: between `1/n` and `1/n^2`).

/// A resource that users share, such as the bytes of the pool or the entries of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    /// The whole resource.
    pub total: u64,
    /// The sum that all users hold, including the requester.
    pub held: u64,
    /// Number of users that hold some of the resource. Includes the requester if the requester
    /// holds some.
    pub holders: u64,
}

impl Stock {
    /// Returns the maximum that a user who holds `own` may hold.
    pub fn share(&self, own: u64) -> u64 {
        let holders = self.holders + u64::from(own == 0);
        let left = self.total.saturating_sub(self.held.saturating_sub(own));
        left / (holders + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_finds_a_half_and_the_next_a_third_of_the_rest() {
        let stock = |held, holders| Stock { total: 1200, held, holders };
        assert_eq!(stock(0, 0).share(0), 600);
        assert_eq!(stock(600, 1).share(600), 600, "and no more");
        assert_eq!(stock(600, 1).share(0), 200);
        assert_eq!(stock(800, 2).share(0), 100);
        // A user that is above its share because others joined keeps its holding and gets no more.
        assert_eq!(stock(800, 2).share(600), 333);
    }

    proptest! {
        #[test]
        fn everybody_finds_something_whatever_the_others_take(total in 10_000u64..1 << 40, greed in prop::collection::vec(0u64..=100, 1..60)) {
            let mut stock = Stock { total, held: 0, holders: 0 };
            for (before, percent) in (0..).zip(greed) {
                let n: u64 = before + 1;
                let share = stock.share(0);
                prop_assert!(share >= total / (n * (n + 1)) - u64::from(n > 1), "user {n} finds {share} of {total}");
                let taken = (u128::from(share) * u128::from(percent) / 100) as u64;
                stock.held += taken;
                stock.holders += u64::from(taken > 0);
                prop_assert!(stock.held < total);
            }
        }
    }
}
